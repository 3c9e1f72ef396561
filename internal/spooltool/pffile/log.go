package pffile

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
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
