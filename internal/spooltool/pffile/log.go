package pffile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/spooltool/plain"
)

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
	in := bufio.NewReaderSize(r, maxRecord)
	entry := make(map[string]string)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil && err != io.EOF {
			if errors.Is(err, bufio.ErrBufferFull) {
				return fmt.Errorf("%w: a line of more than %d octets in the defer file", ErrFormat, maxRecord)
			}
			return err
		}
		text := strings.TrimRight(string(line), "\n")
		if name, value, ok := strings.Cut(text, "="); ok && !strings.HasPrefix(text, "<") {
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
