"""What people see of a result: files, tables, figures."""
