#!/bin/sh
# Run by mmdebstrap on the finished tree, whose path is $1. Leaves nothing in the image that two hosts must not share.
set -eu
root=$1

chroot "$root" useradd --create-home --shell /bin/bash ops
install -d -m 0700 "$root/home/ops/.ssh"
chroot "$root" chown ops:ops /home/ops/.ssh
printf 'ops ALL=(ALL) NOPASSWD: ALL\n' >"$root/etc/sudoers.d/ops"
chmod 0440 "$root/etc/sudoers.d/ops"

rm -f "$root"/etc/ssh/ssh_host_*_key "$root"/etc/ssh/ssh_host_*_key.pub "$root/etc/munge/munge.key"
: >"$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id"
find "$root/var/lib/apt/lists" -mindepth 1 -delete
rm -f "$root"/var/cache/apt/archives/*.deb "$root"/var/cache/apt/*.bin

# Packages beyond a plain machine's come with their services off: whoever wants one turns it on.
for package in ${WARM_PACKAGES:-}; do
  chroot "$root" dpkg -L "$package" | sed -nE 's#.*/systemd/system/([^/@]+\.(service|socket|timer))$#\1#p' |
    while read -r unit; do
      chroot "$root" systemctl --quiet disable "$unit"
    done
done

# Unsynced writes are for the build alone.
rm -f "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
