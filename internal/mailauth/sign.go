package mailauth

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// A Signing is one DKIM signature that is to be made, by RFC 6376: rsa-sha256 or ed25519-sha256, with
// relaxed canonicalization of header and body, since relays on the way may refold and trim.
type Signing struct {
	Domain, Selector string
	Key              crypto.Signer // RSA or Ed25519
	// Names are those of h=, and Fields what each of them covers, with its CRLF: of a name that is there
	// several times, the fields from the bottom upwards. A nil one covers that there is no further field.
	Names  []string
	Fields [][]byte
	// Made and Expires are t= and x=. If they are zero the signature does not say them. OpenDKIM and rspamd
	// take a signature that was made in the future for none: with t=, a clock that is wrong by some minutes,
	// the receiver's or our own, is enough for all our mail to be unsigned.
	Made, Expires time.Time
}

// BodyHash is what signatures say of a body: its SHA-256 with relaxed canonicalization. The error is that of the reader.
func BodyHash(body io.Reader) ([]byte, error) { return bodyHash(body, true) }

// Sign makes the DKIM-Signature: field, with its CRLF, of a message whose body has that hash.
func Sign(s *Signing, body []byte) ([]byte, error) {
	algorithm := "rsa-sha256"
	var digest crypto.Hash = crypto.SHA256
	switch s.Key.Public().(type) {
	case *rsa.PublicKey:
	case ed25519.PublicKey: // it signs the hash as if that were the message (RFC 8463 section 3)
		algorithm, digest = "ed25519-sha256", 0
	default:
		return nil, fmt.Errorf("a key of type %T cannot sign mail", s.Key.Public())
	}
	f := fold{b: []byte("DKIM-Signature:")}
	f.at = len(f.b)
	f.word("v=1;")
	f.word("a=" + algorithm + ";")
	f.word("c=relaxed/relaxed;")
	f.word("d=" + s.Domain + ";")
	f.word("s=" + s.Selector + ";")
	if !s.Made.IsZero() {
		f.word("t=" + strconv.FormatInt(s.Made.Unix(), 10) + ";")
	}
	if !s.Expires.IsZero() {
		f.word("x=" + strconv.FormatInt(s.Expires.Unix(), 10) + ";")
	}
	f.list("h=", s.Names)
	f.word("bh=" + base64.StdEncoding.EncodeToString(body) + ";")
	f.line("b=")
	h := sha256.New()
	for _, raw := range s.Fields {
		if raw != nil {
			h.Write(canonical(raw, true))
		}
	}
	h.Write(bytes.TrimSuffix(canonical(append(bytes.Clone(f.b), crlf...), true), crlf))
	signature, err := s.Key.Sign(rand.Reader, h.Sum(nil), digest)
	if err != nil {
		return nil, err
	}
	for text := base64.StdEncoding.EncodeToString(signature); text != ""; {
		n := min(len(text), maxLine-f.at)
		f.b = append(f.b, text[:n]...)
		if text = text[n:]; text != "" {
			f.line("")
		}
	}
	return append(f.b, crlf...), nil
}

// maxLine is how long the lines of a signature are, in octets, unless a word is longer.
const maxLine = 76

// A fold is a field that is being written, folded between words.
type fold struct {
	b  []byte
	at int // octets in the last line
}

// line begins a line with a word.
func (f *fold) line(word string) {
	f.b = append(append(f.b, "\r\n\t"...), word...)
	f.at = 1 + len(word)
}

// word appends a word after a space.
func (f *fold) word(word string) {
	if f.at+1+len(word) > maxLine {
		f.line(word)
		return
	}
	f.b = append(append(f.b, ' '), word...)
	f.at += 1 + len(word)
}

// list begins a line with a list with colons, which is folded behind them (RFC 6376 section 3.5, h=).
func (f *fold) list(tag string, items []string) {
	f.line(tag)
	for i, item := range items {
		if i < len(items)-1 {
			item += ":"
		} else {
			item += ";"
		}
		if f.at+len(item) > maxLine && !strings.HasSuffix(string(f.b), tag) {
			f.line(item)
			continue
		}
		f.b = append(f.b, item...)
		f.at += len(item)
	}
}
