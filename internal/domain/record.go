package domain

import (
	"fmt"
	"io"
	"strings"

	"posthaste/internal/mailauth/dkimkey"
)

// A Record is one DNS record to publish.
type Record struct {
	Name string `json:"name"` // absolute, without the dot at the end
	Type string `json:"type"` // TXT, MX, ...
	Data string `json:"data"` // as in a master file (RFC 1035 section 5), but for TXT: its text
	Why  string `json:"why"`  // what it is for, in a few words
}

// String is the record as a line of a master file.
func (r Record) String() string {
	data := r.Data
	if r.Type == "TXT" {
		data = quoted(data)
	}
	return r.Name + ". IN " + r.Type + " " + data
}

// quoted writes a text as the strings of a TXT record, in parentheses where it takes several.
func quoted(text string) string {
	parts := dkimkey.Strings(text)
	if len(parts) == 1 {
		return parts[0]
	}
	return "( " + strings.Join(parts, "\n\t") + " )"
}

// writeZone writes records as a fragment of the domain's master file, those of one purpose together. What
// is not in the domain is a comment: a name server does not load a file that has records of another zone.
func writeZone(w io.Writer, records []Record, domain string) error {
	for i, r := range records {
		if i == 0 || records[i-1].Why != r.Why {
			if _, err := fmt.Fprintf(w, "; %s\n", r.Why); err != nil {
				return err
			}
		}
		line := r.String()
		if !within(r.Name, domain) {
			line = "; " + strings.ReplaceAll(line, "\n", "\n; ")
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// writeForm writes records as the web forms of DNS providers ask for them: a text is one line,
// without quotes. Records of one purpose are together, below a line that says what they are for.
func writeForm(w io.Writer, records []Record) error {
	for i, r := range records {
		if i == 0 || records[i-1].Why != r.Why {
			if _, err := fmt.Fprintf(w, "%s:\n", r.Why); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(w, "  name   %s\n  type   %s\n  value  %s\n", r.Name, r.Type, r.Data); err != nil {
			return err
		}
	}
	return nil
}
