package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A contest is a workload that two mail systems have in turn, with what they are configured with and are given for it.
type contest struct {
	workload
	lines string // of both main.cf
	needs []need // what must be installed
	unit  string // of what is counted a second; empty: messages
	each  float64

	latency, memory bool // what is measured besides
	limit           bool // a program that does no more than what must be done has the same mail

	tls *tlsUse
	// equip gives a mail system its helpers and files, and returns lines of main.cf for it alone.
	equip func(*entrant) (lines string, err error)
	// inquiry is what its sink looks at, and check says of what came of it what is not as it should be: a figure of a
	// round whose settings were not in force would be none.
	inquiry inquiry
	check   func(*entrant, tally) error
}

// contests are all of them. A workload of the same name as one of the comparison with the base is the same.
func contests() []*contest {
	list := []*contest{
		{workload: like("relay", "relay")},
		{workload: like("relay100", "relay100"), memory: true},
		{workload: like("latency", "latency"), latency: true},
		{workload: like("small", "small")},
		{workload: like("connect", "connect")},
		{workload: like("fanout", "fanout"), unit: "recipients", each: 50},
		{workload: like("large", "large"), unit: "megabytes", each: 1 << 20 / 1e6, limit: true},
		{workload: like("domains", "domains")},
		{workload: like("connect", "tls"), tls: &tlsUse{}},
		{workload: like("connect", "tls-resumed"), tls: &tlsUse{resume: true}},
		{workload: like("relay", "tls-kept"), tls: &tlsUse{keep: true}},
		signed("dkim-rsa", rsaKey),
		signed("dkim-ed25519", ed25519Key),
		filtered(),
		searched(),
		queried(),
	}
	for _, c := range list {
		if c.latency {
			c.numbered, c.inquiry.name = true, "n"
		}
		if c.unit == "" {
			c.unit, c.each = "messages", 1
		}
	}
	return list
}

// like is the workload of this name, by another name.
func like(name, as string) workload {
	i := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
	w := workloads[i]
	w.name = as
	return w
}

// chosenContests are those of these names, between commas; all of them without a name. most is how many messages
// a round has at most, if it is not 0.
func chosenContests(text string, most int) (list []*contest, err error) {
	all := contests()
	var names []string
	for _, c := range all {
		names = append(names, c.name)
		if most > 0 {
			c.messages = min(c.messages, most)
		}
	}
	if text == "" {
		return all, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		i := slices.Index(names, strings.TrimSpace(name))
		if i < 0 {
			return nil, fmt.Errorf("there is no workload %q to have beside Postfix: there are %s", name, strings.Join(names, ", "))
		}
		list = append(list, all[i])
	}
	return list, nil
}

// markText is what body_checks looks for at the end of each message, and sealText what it makes of it.
const (
	markText = "Here ends what is looked through."
	sealText = "Here ended what was looked through."
)

// searched is mail whose body is looked through for fifty patterns that it does not have, and for one that it has.
func searched() *contest {
	c := &contest{workload: like("relay", "body_checks"), lines: "body_checks = regexp:{dir}/etc/body\n"}
	c.messages = 3000
	c.last = markText
	c.inquiry.mark = sealText
	c.equip = func(e *entrant) (string, error) {
		var b strings.Builder
		for i := range 50 {
			fmt.Fprintf(&b, `/\b(casino|poker%d)\b.*http:\/\/[a-z0-9.]+\/%d/ REJECT`+"\n", i, i)
		}
		fmt.Fprintf(&b, "/^%s$/ REPLACE %s\n", strings.ReplaceAll(markText, ".", `\.`), sealText)
		return "", os.WriteFile(filepath.Join(e.dir, "etc", "body"), []byte(b.String()), 0o644)
	}
	c.check = func(_ *entrant, t tally) error {
		if t.marked != t.messages {
			return fmt.Errorf("body_checks changed %d of %d messages", t.marked, t.messages)
		}
		return nil
	}
	return c
}

// A need is what a contest cannot do without.
type need struct {
	what  string
	there func() bool
}

// missing says what is not there of what contests need, each thing once.
func missing(list []*contest) error {
	needs := []need{{"to be root, which Postfix needs", func() bool { return os.Geteuid() == 0 }}, {"Postfix, the package postfix", installed("postfix")}}
	for _, c := range list {
		needs = append(needs, c.needs...)
	}
	var words []string
	for _, n := range needs {
		if !slices.Contains(words, n.what) && !n.there() {
			words = append(words, n.what)
		}
	}
	if len(words) > 0 {
		return errors.New("needed, and not there: " + strings.Join(words, "; "))
	}
	return nil
}
