# What failed in the output of "go test", with the first lines of why.
/^ *--- FAIL: / || /^panic: / || /^WARNING: DATA RACE/ || /\[(build|setup) failed\]$/ {
	if (!said++)
		print "What failed:"
	left = 5
}
left > 0 {
	print substr($0, 1, 400)
	left--
}
