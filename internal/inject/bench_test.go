package inject

import (
	"encoding/base64"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"posthaste/internal/apitoken"
)

// BenchmarkCompose reads a message of 10 KB in JSON and writes what cleanup gets: as text, and as an attachment.
func BenchmarkCompose(b *testing.B) {
	text := strings.Repeat("The quick brown fox jumps over the lazy dog and goes on for a while like this.\r\n", 128)
	head := `{"from": "a@from.test", "to": ["b@to.test"], "subject": "x", `
	set := &limits{recipients: 10, attachments: 10, schedule: time.Hour}
	token := &apitoken.Token{Name: "t", Senders: []string{"from.test"}}
	for name, body := range map[string]string{"text": head + `"text": ` + strconv.Quote(text) + `}`,
		"file": head + `"attachments": [{"content": "` + base64.StdEncoding.EncodeToString([]byte(text)) + `"}]}`} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			buf := make([]byte, len(body))
			for b.Loop() {
				copy(buf, body)
				m, err := decode(buf, set)
				if err == nil {
					err = m.check(time.Unix(0, 0), set)
				}
				if err != nil {
					b.Fatal(err)
				}
				o, err := plan(m, token, true)
				if err != nil {
					b.Fatal(err)
				}
				if err := o.write(io.Discard, o.drafts[0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
