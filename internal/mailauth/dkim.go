package mailauth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/emersion/go-msgauth/dkim"

	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/rfc5322"
)

// Bounds on what is looked at. Each signed name is looked for in all fields, and
// what a key costs grows with the square of its length: a key record of this
// many octets holds more than 8192 bits of RSA.
const (
	maxSignatures = 5
	maxHeader     = 1 << 20
	maxFields     = 2000
	maxSignature  = 16 << 10
	maxNames      = 300
	maxKeyRecord  = 2 << 10
	maxFolding    = 64 << 20 // octets, see folding
)

// dkim verifies the signatures of a message, the first few of them.
func (c *Checker) dkim(ctx context.Context, m *Message) []DKIM {
	var rest, sigs []rfc5322.Field
	for h := m.Header; ; {
		f, r, ok := rfc5322.NextField(h)
		if !ok {
			break
		}
		h = r
		if !rfc5322.EqualName(f.Name(), "DKIM-Signature") {
			rest = append(rest, f)
		} else if len(sigs) < maxSignatures {
			sigs = append(sigs, f)
		}
	}
	if len(sigs) == 0 {
		return nil
	}
	if len(m.Header) > maxHeader || len(rest) > maxFields {
		return []DKIM{{Result: PermError, Reason: "header too large"}}
	}
	list := make([]DKIM, 0, len(sigs))
	for _, f := range sigs {
		list = append(list, c.signature(ctx, f, rest, &largeReads{m.Body(), m.BodySize}))
	}
	return list
}

// covered are the fields that a signature speaks of, as far as they matter to
// it: with relaxed canonicalization the folding does not, and the library
// spends the square of a field's length on it.
func covered(names []string, relaxed bool, fields []rfc5322.Field) ([]byte, error) {
	var b []byte
	folding := 0
	for i := range fields {
		f := &fields[i]
		if !slices.ContainsFunc(names, func(n string) bool { return rfc5322.EqualName(f.Name(), n) }) {
			continue
		}
		if relaxed {
			b = append(b, Unfolded(f.Raw)...)
			continue
		}
		if folding += len(f.Raw) * bytes.Count(f.Raw, crlf); folding > maxFolding {
			return nil, errors.New("header folded too often")
		}
		b = append(b, f.Raw...)
	}
	return b, nil
}

// largeReads gives a body to the library in a few pieces: with simple
// canonicalization it goes over a run of empty lines again with each piece.
type largeReads struct {
	io.Reader
	size int64
}

// WriteTo implements io.WriterTo, which io.Copy asks for.
func (r *largeReads) WriteTo(w io.Writer) (n int64, err error) {
	chunk := make([]byte, max(r.size/16, 16<<10))
	for {
		k, rerr := io.ReadFull(r.Reader, chunk)
		if k > 0 {
			if _, err := w.Write(chunk[:k]); err != nil {
				return n, err
			}
			n += int64(k)
		}
		switch rerr {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return n, nil
		default:
			return n, rerr
		}
	}
}

var crlf = []byte("\r\n")

// Unfolded is a field, which ends in CRLF, on one line. Nothing else of it is
// changed: by relaxed canonicalization (RFC 6376 section 3.4.2) it is the same.
func Unfolded(raw []byte) []byte {
	if bytes.Count(raw, crlf) < 2 {
		return raw
	}
	return append(bytes.ReplaceAll(raw, crlf, nil), crlf...)
}

// signature verifies one signature. The library is given a message with just
// this one: it then works on this goroutine, where a panic of its is caught.
func (c *Checker) signature(ctx context.Context, f rfc5322.Field, fields []rfc5322.Field, body io.Reader) (d DKIM) {
	tags := dkimkey.Tags(string(f.Body()))
	d = DKIM{Result: PermError, Domain: strings.ToLower(tags["d"]), Selector: tags["s"], Algorithm: tags["a"], B: tags["b"]}
	if len(d.B) > 8 {
		d.B = d.B[:8]
	}
	if len(f.Raw) > maxSignature {
		d.Reason = "signature too large"
		return d
	}
	names := strings.Split(tags["h"], ":")
	if len(names) > maxNames {
		d.Reason = "too many names in h="
		return d
	}
	how, _, _ := strings.Cut(tags["c"], "/")
	others, err := covered(names, how == "relaxed", fields)
	if err != nil {
		d.Reason = err.Error()
		return d
	}
	defer func() {
		if r := recover(); r != nil {
			d.Result, d.Reason = PermError, "malformed signature"
		}
	}()
	strict := false
	opt := &dkim.VerifyOptions{MaxVerifications: 1, LookupTXT: func(name string) ([]string, error) {
		a, err := c.dns.TXT(ctx, name)
		if err != nil {
			return nil, dnsError(name, err)
		}
		for _, txt := range a.Records {
			if len(txt) > maxKeyRecord {
				return nil, errors.New("the key is too long")
			}
			for flag := range strings.SplitSeq(dkimkey.Tags(txt)["t"], ":") {
				strict = strict || strings.TrimSpace(flag) == "s"
			}
		}
		return a.Records, nil
	}}
	vs, err := dkim.VerifyWithOptions(io.MultiReader(bytes.NewReader(f.Raw), bytes.NewReader(others), strings.NewReader("\r\n"), body), opt)
	if err == nil && len(vs) != 1 {
		err = fmt.Errorf("%d signatures found, expected one", len(vs))
	}
	if err == nil {
		err = vs[0].Err
	}
	if err == nil && strict && tags["i"] != "" && !strings.EqualFold(rfc5322.Domain(tags["i"]), tags["d"]) {
		err = errors.New("dkim: the key is not for subdomains") // RFC 6376 section 3.6.1, t=s
		d.Result, d.Reason = PermError, strings.TrimPrefix(err.Error(), "dkim: ")
		return d
	}
	switch {
	case err == nil:
		d.Result = Pass
		return d
	case dkim.IsTempFail(err) || ctx.Err() != nil:
		d.Result = TempError
	case dkim.IsPermFail(err):
		d.Result = PermError
	default:
		d.Result = Fail
	}
	d.Reason = strings.TrimPrefix(err.Error(), "dkim: ")
	return d
}

// Signer says whose key a DKIM-Signature: field names: the domain, in lower case, and the
// selector. They are empty in what is none.
func Signer(raw []byte) (domain, selector string) {
	f, ok := rfc5322.ParseField(raw)
	if !ok || !rfc5322.EqualName(f.Name(), "DKIM-Signature") || len(raw) > maxSignature {
		return "", ""
	}
	tags := dkimkey.Tags(string(f.Body()))
	return strings.ToLower(tags["d"]), tags["s"]
}
