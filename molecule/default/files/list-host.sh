#!/bin/sh
# Everything on the host that an installation could leave behind, one per line. Not listed: records of apt, dpkg and their
# helpers about their own work, and files that any login leaves.
dpkg-query --show --showformat='package ${Package} ${db:Status-Status}\n'
getent passwd | sed 's/^/user /'
getent group | sed 's/^/group /'
find /etc /home /opt /root /run /srv /usr /var -xdev \
  \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/lib/ucf -o -path /var/log/journal \
  -o -path /var/log/apt -o -path /run/systemd -o -path /run/user -o -path /run/udev -o -path /run/gpuaas-slurm -o -name __pycache__ \
  -o -path '/run/ssh*' -o -path '/run/sudo' -o -path '/run/log' -o -path '/var/lib/systemd' -o -path '/home/*/.ansible' \) -prune -o \
  ! -name '*.log' ! -name 'motd.dynamic' ! -name 'adduser' ! -name '?tmp' ! -path '/var/tmp/*' ! -path '/run/lock/*' \
  -printf 'path %p %y %m %u %g\n'
systemctl list-unit-files --no-legend --no-pager --type=service | sed 's/^/unit /'
ps -e -o comm= | grep -E 'slurm|munge' | sed 's/^/process /'
exit 0
