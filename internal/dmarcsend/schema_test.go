package dmarcsend

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// An element is what RFC 9990's schema says of one: how often it may occur, what is in it, in
// which order, or of which words its text is.
type element struct {
	name     string
	min, max int // of occurrences; max 0: any number
	ordered  bool
	children []element
	words    []string          // of its text; nil: any
	valid    func(string) bool // of its text; nil: anything that is not empty
}

func number(s string) bool { _, err := strconv.ParseUint(s, 10, 63); return err == nil }
func address(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

var (
	policies     = []string{"none", "quarantine", "reject"}
	dkimResults  = []string{"none", "pass", "fail", "policy", "neutral", "temperror", "permerror"}
	spfResults   = []string{"none", "pass", "fail", "softfail", "policy", "neutral", "temperror", "permerror"}
	passFail     = []string{"pass", "fail"}
	alignments   = []string{"r", "s"}
	dispositions = []string{"none", "pass", "quarantine", "reject"}
)

// schema is the schema's facts: RFC 9990 appendix A, as far as this program writes such reports.
var schema = element{name: "feedback", ordered: true, children: []element{
	{name: "version", max: 1, words: []string{"1.0"}},
	{name: "report_metadata", min: 1, max: 1, children: []element{
		{name: "org_name", min: 1, max: 1}, {name: "email", min: 1, max: 1}, {name: "extra_contact_info", max: 1}, {name: "report_id", min: 1, max: 1},
		{name: "date_range", min: 1, max: 1, children: []element{{name: "begin", min: 1, max: 1, valid: number}, {name: "end", min: 1, max: 1, valid: number}}},
		{name: "error"}, {name: "generator", max: 1}}},
	{name: "policy_published", min: 1, max: 1, children: []element{
		{name: "domain", min: 1, max: 1}, {name: "discovery_method", max: 1, words: []string{"psl", "treewalk"}},
		{name: "p", min: 1, max: 1, words: policies}, {name: "sp", max: 1, words: policies}, {name: "np", max: 1, words: policies},
		{name: "adkim", max: 1, words: alignments}, {name: "aspf", max: 1, words: alignments}, {name: "fo", max: 1}, {name: "testing", max: 1, words: []string{"n", "y"}}}},
	{name: "record", min: 1, children: []element{
		{name: "row", min: 1, max: 1, children: []element{
			{name: "source_ip", min: 1, max: 1, valid: address}, {name: "count", min: 1, max: 1, valid: number},
			{name: "policy_evaluated", min: 1, max: 1, children: []element{
				{name: "disposition", min: 1, max: 1, words: dispositions}, {name: "dkim", min: 1, max: 1, words: passFail}, {name: "spf", min: 1, max: 1, words: passFail},
				{name: "reason", children: []element{
					{name: "type", min: 1, max: 1, words: []string{"local_policy", "mailing_list", "other", "policy_test_mode", "trusted_forwarder"}}, {name: "comment", max: 1}}}}}}},
		{name: "identifiers", min: 1, max: 1, children: []element{{name: "header_from", min: 1, max: 1}, {name: "envelope_from", max: 1}, {name: "envelope_to", max: 1}}},
		{name: "auth_results", min: 1, max: 1, children: []element{
			{name: "dkim", max: 100, children: []element{
				{name: "domain", min: 1, max: 1}, {name: "selector", min: 1, max: 1}, {name: "result", min: 1, max: 1, words: dkimResults}, {name: "human_result", max: 1}}},
			{name: "spf", max: 1, children: []element{
				{name: "domain", min: 1, max: 1}, {name: "scope", max: 1, words: []string{"mfrom"}}, {name: "result", min: 1, max: 1, words: spfResults}, {name: "human_result", max: 1}}}}}}},
}}

// A node is an element of a report.
type node struct {
	name     xml.Name
	text     string
	children []*node
}

// parse reads a report.
func parse(text string) (*node, error) {
	d := xml.NewDecoder(strings.NewReader(text))
	root := &node{}
	at := []*node{root}
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		switch t := token.(type) {
		case xml.StartElement:
			n := &node{name: t.Name}
			at[len(at)-1].children = append(at[len(at)-1].children, n)
			at = append(at, n)
		case xml.EndElement:
			at = at[:len(at)-1]
		case xml.CharData:
			at[len(at)-1].text += string(t)
		}
	}
	if len(root.children) != 1 {
		return nil, fmt.Errorf("%d roots", len(root.children))
	}
	return root.children[0], nil
}

// validate says what of a report is not as the schema has it.
func (e *element) validate(n *node) error {
	if n.name.Local != e.name || n.name.Space != namespace {
		return fmt.Errorf("%v: expected %s", n.name, e.name)
	}
	if e.children == nil {
		switch {
		case len(n.children) > 0:
			return fmt.Errorf("%s: there are elements in it", e.name)
		case e.words != nil && !slices.Contains(e.words, n.text), e.valid != nil && !e.valid(n.text), n.text == "":
			return fmt.Errorf("%s: %q", e.name, n.text)
		}
		return nil
	}
	last := 0
	counts := map[string]int{}
	for _, c := range n.children {
		i := slices.IndexFunc(e.children, func(k element) bool { return k.name == c.name.Local })
		if i < 0 || e.ordered && i < last {
			return fmt.Errorf("%s: %s is unknown, or comes too late", e.name, c.name.Local)
		}
		last = i
		counts[c.name.Local]++
		if err := e.children[i].validate(c); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	for _, k := range e.children {
		if n := counts[k.name]; n < k.min || k.max > 0 && n > k.max {
			return fmt.Errorf("%s: %d times %s", e.name, n, k.name)
		}
	}
	return nil
}
