package pffile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/rfc5322"
	"posthaste/internal/spooltool/plain"
)

// maxLogLine bounds what is read of one line.
const maxLogLine = 16 << 10

// ReadLog reads a file of Postfix's defer service and gives m's recipients the
// outcomes that it has for them, as of the time given. It is a row of entries,
// one a failed delivery, with an empty line after each: a line for people, and
// then NAME=VALUE. The last entry of a recipient counts. What is not
// understood is passed over: an outcome is not worth a message.
func ReadLog(r io.Reader, m *plain.Message, when time.Time) error {
	byAddress := make(map[string][]int)
	for i := range m.Envelope.Recipients {
		if !m.Done[i] {
			a := m.Envelope.Recipients[i].Address
			byAddress[a] = append(byAddress[a], i)
			if quoted := rfc5322.Quote(a); quoted != a { // as it is written there
				byAddress[quoted] = append(byAddress[quoted], i)
			}
		}
	}
	in := bufio.NewReaderSize(r, maxLogLine)
	entry := make(map[string]string)
	for rest := false; ; {
		line, err := in.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && err != io.EOF && !long {
			return err
		}
		text := strings.TrimRight(string(line), "\n")
		part := rest || long
		rest = long
		if part && err != io.EOF {
			continue // nothing is that long that we want to know
		}
		if name, value, ok := strings.Cut(text, "="); ok && !part && !strings.HasPrefix(text, "<") {
			entry[name] = value
		}
		if text == "" || err == io.EOF {
			if o, ok := outcome(entry, when); ok {
				for _, i := range byAddress[entry["recipient"]] {
					o.Rcpt = i
					m.Outcomes[i] = o
				}
			}
			clear(entry)
		}
		if err == io.EOF {
			return nil
		}
	}
}

// outcome is what an entry says, if it is about a deferral.
func outcome(entry map[string]string, when time.Time) (o mail.Outcome, ok bool) {
	status, err := dsn.ParseStatus(entry["status"])
	if err != nil || entry["action"] != "delayed" || entry["recipient"] == "" {
		return o, false
	}
	return mail.Outcome{Action: dsn.Deferred, Status: status, Reason: entry["reason"], MTA: entry["mta_mname"],
		DiagType: entry["diag_type"], DiagText: entry["diag_text"], When: when}, true
}

// WriteLog writes what m's recipients have been deferred for, as Postfix's defer
// service would. It returns how many there are, and when the last of them was. Postfix keeps
// of the time no more than the file's.
func WriteLog(w io.Writer, m *plain.Message) (n int, last time.Time, err error) {
	out := bufio.NewWriter(w)
	for i := range m.Envelope.Recipients {
		o, ok := m.Outcomes[i]
		if !ok || m.Done[i] || o.Action != dsn.Deferred {
			continue
		}
		r := &m.Envelope.Recipients[i]
		n++
		if o.When.After(last) {
			last = o.When
		}
		address := rfc5322.Quote(r.Address)
		fmt.Fprintf(out, "\n<%s>: %s\n", oneLine(address), oneLine(o.Reason))
		for _, a := range logAttributes(r, address, &o) {
			if a.value != "" {
				fmt.Fprintf(out, "%s=%s\n", a.name, oneLine(a.value))
			}
		}
		fmt.Fprint(out, "\n")
	}
	return n, last, out.Flush()
}

// oneLine is text that ends no line: each is one in the file.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, text)
}

type logAttribute struct{ name, value string }

// logAttributes are those of an entry, in Postfix's order; those without a value are
// left out.
func logAttributes(r *mail.Recipient, address string, o *mail.Outcome) []logAttribute {
	list := []logAttribute{{"recipient", address}}
	if r.Original != "" && !strings.EqualFold(r.Original, r.Address) {
		list = append(list, logAttribute{"original_recipient", rfc5322.Quote(r.Original)})
	}
	list = append(list, logAttribute{"dsn_orig_rcpt", r.ORCPT})
	if flags := notifyFlags(r.Notify); flags != 0 {
		list = append(list, logAttribute{"dsn_notify", strconv.Itoa(flags)})
	}
	list = append(list, logAttribute{"status", o.Status.String()}, logAttribute{"action", "delayed"})
	if o.DiagType != "" && o.DiagText != "" {
		list = append(list, logAttribute{"diag_type", o.DiagType}, logAttribute{"diag_text", o.DiagText})
	}
	if o.MTA != "" {
		list = append(list, logAttribute{"mta_type", "dns"}, logAttribute{"mta_mname", o.MTA})
	}
	return append(list, logAttribute{"reason", o.Reason})
}
