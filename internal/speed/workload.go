package main

import (
	"fmt"
	"strings"
)

// A workload is mail that is sent in each round.
type workload struct {
	name       string
	sessions   int // at once
	messages   int // in a round, over all sessions
	size       int // octets of a message
	perConn    int // messages over one connection; 0: no limit
	recipients int // of each message
	domains    int // whose recipients they are, in turn
	senders    int // domains that they come from, in turn; 0: always the same one

	numbered bool     // each message has a recipient of its own, who is named by its number
	last     string   // the last line of each message; empty: like the others
	secured  *secured // sessions begin with STARTTLS; nil: they do not
	stamps   *stamps  // when messages began, if that is to be known
}

// workloads are all of them. The numbers of messages make a round of about a second on two cores.
var workloads = []workload{
	{name: "relay", sessions: 20, messages: 6000, size: 10240, recipients: 1, domains: 1},
	{name: "relay100", sessions: 100, messages: 6000, size: 10240, recipients: 1, domains: 1},
	{name: "latency", sessions: 1, messages: 1000, size: 10240, recipients: 1, domains: 1},
	{name: "small", sessions: 20, messages: 6000, size: 1024, recipients: 1, domains: 1},
	{name: "large", sessions: 10, messages: 400, size: 1 << 20, recipients: 1, domains: 1},
	{name: "connect", sessions: 20, messages: 3000, size: 10240, perConn: 1, recipients: 1, domains: 1},
	{name: "fanout", sessions: 20, messages: 1000, size: 10240, recipients: 50, domains: 1},
	{name: "domains", sessions: 20, messages: 5000, size: 10240, recipients: 1, domains: 500},
}

func names() (list []string) {
	for _, w := range workloads {
		list = append(list, w.name)
	}
	return list
}

// chosen are the workloads of these names, between commas; all of them without a name.
func chosen(text string) (list []workload, err error) {
	if text == "" {
		return workloads, nil
	}
next:
	for name := range strings.SplitSeq(text, ",") {
		for _, w := range workloads {
			if w.name == strings.TrimSpace(name) {
				list = append(list, w)
				continue next
			}
		}
		return nil, fmt.Errorf("there is no workload %q: there are %s", name, strings.Join(names(), ", "))
	}
	return list, nil
}

// sender is the address that message n comes from.
func (w *workload) sender(n int) string {
	if w.senders == 0 {
		return "a@from.test"
	}
	return fmt.Sprintf("a@from%d.test", n%w.senders)
}

// recipient is the address of recipient i of message n.
func (w *workload) recipient(n, i int) string {
	if w.numbered {
		return fmt.Sprintf("n%d@d%d.test", n, n%w.domains)
	}
	return fmt.Sprintf("r%d@d%d.test", i, n%w.domains)
}

// text is a message, as it is sent after DATA, with the final dot.
func (w *workload) text() []byte {
	var b strings.Builder
	b.WriteString("From: <a@from.test>\r\nSubject: speed\r\n\r\n")
	const line = "A line of text that is as long as many lines of mail are.\r\n"
	for b.Len()+len(line) < w.size {
		b.WriteString(line)
	}
	if w.last != "" {
		b.WriteString(w.last + "\r\n")
	}
	return []byte(b.String() + ".\r\n")
}
