"""Numbers from guesses and scores: errors, intervals, ROC curves, lower bounds."""
