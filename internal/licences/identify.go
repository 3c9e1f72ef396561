package licences

import (
	"regexp"
	"strings"
)

// spdx is the line in which a file names its licence itself.
var spdx = regexp.MustCompile(`SPDX-License-Identifier: ([A-Za-z0-9. +()-]+[A-Za-z0-9)])`)

// Sentences that only a text of that licence has. All of them let the programs be passed
// on under the Apache License, with the text beside them. MPL-2.0 asks besides that the
// recipient is told where the module's source is, which docs/licences.md does; it asks
// nothing of code in other files. A licence that asks for more must not be added here.
var sentences = []struct{ id, says string }{
	{"Apache-2.0", "apache license version 2.0"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software for any purpose"},
	{"ISC", "permission to use, copy, modify, and distribute this software for any purpose"},
	{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy"},
	{"MPL-2.0", "mozilla public license version 2.0"},
	{"blessing", "dedicated to the public domain by the authors"},
}

// identify returns the SPDX identifiers of the licences in a text, none for an unknown
// one. The variants of BSD are told apart by the clause about names.
func identify(body string) []string {
	if m := spdx.FindStringSubmatch(body); m != nil {
		return []string{m[1]}
	}
	flat := strings.ToLower(strings.Join(strings.Fields(body), " "))
	flat = strings.ReplaceAll(flat, ", version", " version")
	var ids []string
	if strings.Contains(flat, "redistribution and use in source and binary forms") {
		id := "BSD-2-Clause"
		if strings.Contains(flat, "to endorse or promote products derived from this software") {
			id = "BSD-3-Clause"
		}
		ids = append(ids, id)
	}
	for _, s := range sentences {
		if strings.Contains(flat, s.says) {
			ids = append(ids, s.id)
		}
	}
	return ids
}
