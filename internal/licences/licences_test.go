package licences

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const root = "../.."

func TestFilesAreCurrent(t *testing.T) {
	t.Parallel()
	files, err := Files(root)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what go.mod and the programs say (%v): make licences", path, err)
		}
	}
	var b bill
	if err := json.Unmarshal(files["docs/licences/sbom.cdx.json"], &b); err != nil {
		t.Fatal(err)
	}
	// The bill, the table and the texts have the same modules.
	for _, c := range b.Components {
		if c.Name == "std" {
			continue
		}
		if row := "| " + c.Name + " | " + c.Version + " | "; !bytes.Contains(files["docs/licences.md"], []byte(row)) {
			t.Errorf("docs/licences.md has no row %q", row)
		}
		if line := "\n" + c.Name + " " + c.Version + ": "; !bytes.Contains(files["docs/licences/third-party.txt"], []byte(line)) {
			t.Errorf("third-party.txt has no text of %s", c.Name)
		}
		if len(c.Properties) == 0 {
			t.Errorf("%s is in no program", c.Name)
		}
	}
	// Databases are in the program that asks them, and in no other.
	for _, line := range strings.Split(string(files["docs/licences.md"]), "\n") {
		if strings.HasPrefix(line, "| github.com/go-sql-driver/mysql ") && !strings.HasSuffix(line, "| posthaste-tables |") {
			t.Errorf("a driver in another program than posthaste-tables: %s", line)
		}
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	const bsd = "Redistribution and use in source and binary\n   forms, with or without modification, are permitted\n"
	for _, test := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{"All rights reserved.", nil},
		{"GNU GENERAL PUBLIC LICENSE Version 2, June 1991", nil},
		{bsd, []string{"BSD-2-Clause"}},
		{bsd + "may be used\nto endorse or promote products derived from this\nsoftware without", []string{"BSD-3-Clause"}},
		{"Apache License\n      Version 2.0, January 2004", []string{"Apache-2.0"}},
		{"under the Apache License, Version 2.0", []string{"Apache-2.0"}},
		{"Permission is hereby granted, free of charge,\nto any person obtaining a copy", []string{"MIT"}},
		{"/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */\n" + bsd, []string{"BSD-3-Clause OR GPL-2.0-only"}},
		{bsd + "\nPermission is hereby granted, free of charge, to any person obtaining a copy", []string{"BSD-2-Clause", "MIT"}},
	} {
		if got := identify(test.text); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%.40q: %q, want %q", test.text, got, test.want)
		}
	}
}

// A module whose licence nobody knows, or that has none, is an error; a licence beside a
// package that is linked counts, one beside another package does not.
func TestRead(t *testing.T) {
	t.Parallel()
	const mit = "Permission is hereby granted, free of charge, to any person obtaining a copy"
	for _, test := range []struct {
		name  string
		files map[string]string
		want  []string // none: an error
	}{
		{"none", map[string]string{"a/a.go": ""}, nil},
		{"a notice alone", map[string]string{"NOTICE": mit, "a/a.go": ""}, nil},
		{"unknown", map[string]string{"LICENSE": "Pay me.", "a/a.go": ""}, nil},
		{"unknown beside the package", map[string]string{"LICENSE": mit, "a/COPYING": "Pay me."}, nil},
		{"plain", map[string]string{"LICENSE": mit, "a/a.go": ""}, []string{"MIT"}},
		{"beside the package", map[string]string{"LICENSE": mit, "a/LICENCE.txt": "Apache License, Version 2.0"}, []string{"Apache-2.0", "MIT"}},
		{"beside another", map[string]string{"LICENSE": mit, "a/a.go": "", "b/LICENSE": "Pay me."}, []string{"MIT"}},
	} {
		dir := t.TempDir()
		for name, body := range test.files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		m := &module{path: "example.org/m", dir: dir, packages: map[string]bool{filepath.Join(dir, "a"): true}}
		if err := m.read(); (err == nil) != (test.want != nil) || err == nil && !reflect.DeepEqual(m.ids, test.want) {
			t.Errorf("%s: %q, %v, want %q", test.name, m.ids, err, test.want)
		}
	}
}

func TestExpression(t *testing.T) {
	t.Parallel()
	if got := expression([]string{"BSD-3-Clause OR GPL-2.0-only"}); got != "BSD-3-Clause OR GPL-2.0-only" {
		t.Error(got)
	}
	if got := expression([]string{"BSD-3-Clause OR GPL-2.0-only", "MIT"}); got != "(BSD-3-Clause OR GPL-2.0-only) AND MIT" {
		t.Error(got)
	}
}
