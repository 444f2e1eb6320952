"""Operations on workers."""
