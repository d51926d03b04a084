"""Display: tables, lines and JSON for people and scripts."""
