"""What results look like: tables in text and Markdown, and pictures."""
