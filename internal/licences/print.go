package licences

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const head = `<!-- Made by "make licences". -->

# Licences

Posthaste is licensed under the Apache License 2.0 (` + "`LICENSE`" + `). Its programs contain the modules
below, each under its own licence, and the library of Go, which is under BSD-3-Clause. Several
licences in a row apply to different parts of the module. Nothing else is linked in but the C
library of the system, when a program starts.

The texts are in ` + "`licences/third-party.txt`" + `, which must go along with a copy of the programs. A bill
of materials for other programs, in CycloneDX's form, is ` + "`licences/sbom.cdx.json`" + `. The modules of
one program, as built, are printed by ` + "`go version -m PROGRAM`" + `. Every module is used as its authors
publish it: ` + "`go mod download -json MODULE@VERSION`" + ` gets the source, which MPL-2.0 wants said.

| module | version | licence | in |
|---|---|---|---|
`

// table is docs/licences.md.
func table(modules []*module) []byte {
	var b bytes.Buffer
	b.WriteString(head)
	for _, m := range modules {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", m.path, m.version, strings.Join(m.ids, ", "), strings.Join(m.in(), ", "))
	}
	return b.Bytes()
}

// in is the names of the programs, sorted.
func (m *module) in() []string { return slices.Sorted(maps.Keys(m.programs)) }

// texts is every text once, below the names of the modules that have it.
func texts(modules []*module) []byte {
	var order []string
	from := make(map[string][]string)
	for _, m := range modules {
		for _, t := range m.texts {
			if from[t.body] == nil {
				order = append(order, t.body)
			}
			who := m.path + " " + m.version + ": " + t.name
			if m.path == "golang.org/x/sys" && t.name == "LICENSE" { // the same text as the library's
				who += "\nthe library of Go"
			}
			from[t.body] = append(from[t.body], who)
		}
	}
	var b bytes.Buffer
	b.WriteString("What the programs of Posthaste contain besides its own code, and under which conditions.\nMade by \"make licences\".\n")
	for _, body := range order {
		fmt.Fprintf(&b, "\n%s\n%s\n%s\n\n%s", strings.Repeat("=", 80), strings.Join(from[body], "\n"), strings.Repeat("-", 80), body)
	}
	return b.Bytes()
}

// The parts of a bill of materials in CycloneDX 1.6 that are used here. It has neither
// time nor serial number, both of which are optional, so that the same tree gives the same
// file. The version of Posthaste is left out for the same reason: it is that of the tag.
type (
	bill struct {
		Format     string      `json:"bomFormat"`
		Spec       string      `json:"specVersion"`
		Version    int         `json:"version"`
		Metadata   metadata    `json:"metadata"`
		Components []component `json:"components"`
	}
	metadata struct {
		Component component `json:"component"`
	}
	component struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref,omitempty"`
		Name       string     `json:"name"`
		Version    string     `json:"version,omitempty"`
		Licences   []choice   `json:"licenses"`
		URL        string     `json:"purl,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	choice struct {
		Expression string `json:"expression"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
)

// sbom is docs/licences/sbom.cdx.json.
func sbom(modules []*module) ([]byte, error) {
	b := bill{Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: metadata{component{Type: "application", Name: "posthaste", Licences: []choice{{"Apache-2.0"}}}}}
	b.Components = append(b.Components, component{Type: "library", Ref: "pkg:golang/std", Name: "std", Licences: []choice{{"BSD-3-Clause"}}, URL: "pkg:golang/std"})
	for _, m := range modules {
		url := "pkg:golang/" + strings.ToLower(m.path) + "@" + m.version
		c := component{Type: "library", Ref: url, Name: m.path, Version: m.version, Licences: []choice{{expression(m.ids)}}, URL: url}
		for _, program := range m.in() {
			c.Properties = append(c.Properties, property{"posthaste:program", program})
		}
		b.Components = append(b.Components, c)
	}
	out, err := json.MarshalIndent(b, "", "  ")
	return append(out, '\n'), err
}

// expression joins what applies together; a choice between licences is kept in brackets.
func expression(ids []string) string {
	if len(ids) == 1 {
		return ids[0]
	}
	parts := slices.Clone(ids)
	for i, id := range parts {
		if strings.Contains(id, " ") {
			parts[i] = "(" + id + ")"
		}
	}
	return strings.Join(parts, " AND ")
}
