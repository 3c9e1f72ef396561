package dayreport

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/submit"
)

// Gzip compresses a report. The same text gives the same octets.
func Gzip(text []byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(text)
	if err == nil {
		err = z.Close()
	}
	return b.Bytes(), err
}

// AppendBase64 appends data as lines of base64 that end in CRLF.
func AppendBase64(b, data []byte) []byte {
	text := base64.StdEncoding.EncodeToString(data)
	for len(text) > 76 {
		b = append(append(b, text[:76]...), "\r\n"...)
		text = text[76:]
	}
	return append(append(b, text...), "\r\n"...)
}

// Mailto is the address of a mailto: URI, as the DNS of a stranger names it. One without a domain is
// none: it would be that of a user of this system.
func Mailto(u *url.URL) (address string, err error) {
	to, err := url.PathUnescape(u.Opaque)
	if err != nil {
		return "", err
	}
	list := rfc5322.AppendAddresses(nil, to, 0)
	if len(list) != 1 || strings.ContainsAny(to, "\r\n") {
		return "", fmt.Errorf("%q is no address", Printable(to))
	}
	if _, domain, _ := strings.Cut(list[0].Addr, "@"); domain == "" {
		return "", fmt.Errorf("%q has no domain", Printable(to))
	}
	return list[0].Addr, nil
}

// Submit queues a report as mail. Flags keep it from being read as mail that came in; nobody is
// told when it cannot be delivered, and nothing comes of it then.
func Submit(ctx context.Context, s *submit.Client, sender, to string, msg []byte) error {
	now := time.Now()
	id, err := s.NewID(ctx, now)
	if err != nil {
		return err
	}
	// TLSOptional is "TLS-Required: no" (RFC 8689 section 5): the report must not
	// be held up by what it may report.
	m := s.Open(&mail.Envelope{ID: id, Arrival: now, Sender: sender, RewriteContext: "local", TLSOptional: true,
		Recipients: []mail.Recipient{{Address: to, Notify: dsn.NotifyNever}}}, submit.Options{Flags: proto.SubmitMap | proto.SubmitNoReceive})
	if _, err = m.Write(msg); err != nil {
		m.Abort()
		return err
	}
	reply, err := m.Commit(ctx)
	if err == nil && reply.Code != 250 {
		err = fmt.Errorf("cleanup refused it: %s", reply.Reason())
	}
	return err
}
