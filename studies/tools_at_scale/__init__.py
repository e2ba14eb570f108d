"""Study `tools-at-scale`: tools found among thousands, plans checked and mended, against known smallest plans."""
