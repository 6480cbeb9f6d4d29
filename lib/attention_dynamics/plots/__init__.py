"""One module for each notebook: functions that take results and return a figure and the data it shows."""
