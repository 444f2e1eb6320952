"""Operations on the whole instance."""
