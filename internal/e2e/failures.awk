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
# A package in which no test is said to have failed: a panic of a goroutine, or a race outside of tests.
/^FAIL\t/ { failed[$2] }
END {
	for (name in failed)
		print "failed: " name
}
