package dmarcreport

import (
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"strings"
)

const (
	maxMessage  = 32 << 20 // octets of a file
	maxUnpacked = 32 << 20 // octets of a report
	maxParts    = 100      // of a message or an archive
	maxNesting  = 5        // of parts
)

var (
	errTooLarge = errors.New("it is too large")
	errNone     = errors.New("there is no report in it")
)

// limited reads up to n octets, and fails if there are more. (io.LimitReader ends without a word,
// and a report that was cut off would be taken for a whole one.)
type limited struct {
	r io.Reader
	n int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.n < 0 {
		return 0, errTooLarge
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.n+1)])
	if l.n -= int64(n); l.n < 0 {
		return 0, errTooLarge
	}
	return n, err
}

// file adds the reports of a file, whatever its form.
func (s *summary) file(r io.Reader) error {
	return s.any(bufio.NewReader(&limited{r: r, n: maxMessage}), 0)
}

// any adds the reports of r, which may be packed depth times already.
func (s *summary) any(r *bufio.Reader, depth int) error {
	if depth > maxNesting {
		return errTooLarge
	}
	head, err := r.Peek(4)
	if err != nil && err != io.EOF {
		return err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(r)
		if err != nil {
			return err
		}
		return s.any(bufio.NewReader(&limited{r: z, n: maxUnpacked}), depth+1)
	case bytes.Equal(head, []byte("PK\x03\x04")):
		return s.archive(r, depth+1)
	}
	// Files that are edited on some systems begin with a mark of their order of octets.
	if bytes.HasPrefix(head, []byte("\xef\xbb\xbf")) {
		r.Discard(3)
	}
	head, _ = r.Peek(64)
	switch first := bytes.TrimLeft(head, " \t\r\n"); {
	case bytes.HasPrefix(first, []byte("<")):
		return s.aggregate(&limited{r: r, n: maxUnpacked})
	case bytes.HasPrefix(first, []byte("{")):
		return s.tls(r)
	case depth > 0:
		return errNone
	}
	return s.message(r)
}

// archive adds the reports of a zip file, which has to be in memory.
func (s *summary) archive(r io.Reader, depth int) error {
	all, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	z, err := zip.NewReader(bytes.NewReader(all), int64(len(all)))
	switch {
	case err != nil:
		return err
	case len(z.File) > maxParts:
		return fmt.Errorf("an archive of %d files: %w", len(z.File), errTooLarge)
	}
	found := false
	for _, f := range z.File {
		if f.FileInfo().IsDir() {
			continue
		}
		c, err := f.Open()
		if err != nil {
			return err
		}
		err = s.any(bufio.NewReader(&limited{r: c, n: maxUnpacked}), depth)
		c.Close()
		if err != nil && !errors.Is(err, errNone) {
			return err
		}
		found = found || err == nil
	}
	if !found {
		return errNone
	}
	return nil
}

// message adds the reports that are attached to a message.
func (s *summary) message(r *bufio.Reader) error {
	// A line of mbox or of a queue file in front is no field.
	if head, _ := r.Peek(5); string(head) == "From " {
		if _, err := r.ReadString('\n'); err != nil {
			return err
		}
	}
	m, err := mail.ReadMessage(r)
	if err != nil {
		return errNone
	}
	parts := maxParts
	found, err := s.part(m.Header.Get, m.Body, 1, &parts)
	if err == nil && !found {
		err = errNone
	}
	return err
}

// part adds what is in one part of a message. parts is how many may still come.
func (s *summary) part(field func(string) string, body io.Reader, depth int, parts *int) (found bool, err error) {
	if *parts--; *parts < 0 || depth > maxNesting {
		return false, errTooLarge
	}
	kind, params, _ := mime.ParseMediaType(field("Content-Type"))
	if strings.HasPrefix(kind, "multipart/") {
		mr := multipart.NewReader(body, params["boundary"])
		for {
			p, err := mr.NextRawPart()
			if err == io.EOF {
				return found, nil
			}
			if err != nil {
				return found, err
			}
			one, err := s.part(p.Header.Get, p, depth+1, parts)
			if found = found || one; err != nil {
				return found, err
			}
		}
	}
	if kind == "message/rfc822" { // somebody has passed the report on
		m, err := mail.ReadMessage(bufio.NewReader(body))
		if err != nil {
			return false, nil
		}
		return s.part(m.Header.Get, m.Body, depth+1, parts)
	}
	_, disposition, _ := mime.ParseMediaType(field("Content-Disposition"))
	name := strings.ToLower(disposition["filename"] + "." + params["name"])
	if !strings.HasPrefix(kind, "application/") && kind != "text/xml" && !strings.Contains(name, ".xml") && !strings.Contains(name, ".json") {
		return false, nil
	}
	switch strings.ToLower(strings.TrimSpace(field("Content-Transfer-Encoding"))) {
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, body)
	case "quoted-printable":
		body = quotedprintable.NewReader(body)
	}
	err = s.any(bufio.NewReader(body), depth)
	// A signature or a logo is not a report, and no mistake either.
	if errors.Is(err, errNone) {
		return false, nil
	}
	return err == nil, err
}
