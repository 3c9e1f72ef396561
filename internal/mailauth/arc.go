package mailauth

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/emersion/go-msgauth/authres"

	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/resolver"
	"posthaste/internal/rfc5322"
)

// maxSets is how many sets of a chain are looked at; RFC 8617 section 4.2.1 allows 50, and each
// costs a signature.
const maxSets = 10

// ARC is what came of the chain of those who have forwarded a message (RFC 8617). It is the zero
// value where nobody had to know.
type ARC struct {
	Result Result // pass or fail; none: there is no chain; temperror; empty: not looked at
	Sealer string // of the newest set: whom the chain is believed for
	Sets   int
	Reason string // why it failed
	// Vouched says that a sealer who is trusted has found, before the message was changed, that it
	// passed DMARC.
	Vouched bool
}

// Trust has chains of those sealers, domains in lower case, override a failure of DMARC: see
// [ARC.Vouched]. It is called before the Checker is used.
func (c *Checker) Trust(sealers []string) { c.sealers = sealers }

// A set is the three fields that one forwarder has added.
type set struct {
	seal, signature, results *rfc5322.Field
	sealTags, sigTags        map[string]string
}

// chain looks at a message's chain for the sake of a message that has failed DMARC as one of an
// author's domain. What costs much is not done where the newest sealer is not trusted.
func (c *Checker) chain(ctx context.Context, m *Message, author string) ARC {
	sets, others, err := setsOf(m.Header)
	if err == nil && len(sets) == 0 {
		return ARC{Result: None}
	}
	a := ARC{Result: Fail, Sets: len(sets)}
	if err != nil {
		a.Reason = err.Error()
		return a
	}
	newest := &sets[len(sets)-1]
	if a.Sealer = newest.sealer(); !slices.Contains(c.sealers, a.Sealer) {
		return ARC{}
	}
	// The newest signature covers the message as it is; of older ones only the seals count, which
	// cover what was found then (RFC 8617 section 5.2).
	err = c.verifyContent(ctx, newest, others, m)
	for i := len(sets); err == nil && i > 0; i-- {
		err = c.verifySeal(ctx, sets[:i])
	}
	switch {
	case errors.Is(err, errKeyUnknown) || ctx.Err() != nil:
		a.Result, a.Reason = TempError, err.Error()
		return a
	case err != nil:
		a.Reason = err.Error()
		return a
	}
	a.Result = Pass
	for i := len(sets) - 1; i >= 0 && slices.Contains(c.sealers, sets[i].sealer()); i-- {
		if sets[i].passed(author) {
			a.Vouched = true
			break
		}
	}
	return a
}

// setsOf takes the sets out of a header, in the order of their numbers. others are the fields that
// signatures are about. An error says why there is no chain in what looks like one.
func setsOf(header []byte) (sets []set, others []rfc5322.Field, err error) {
	if len(header) > maxHeader {
		return nil, nil, errors.New("header too large")
	}
	for rest, n := header, 0; ; n++ {
		f, r, ok := rfc5322.NextField(rest)
		if !ok {
			break
		}
		if rest = r; n > maxFields {
			return nil, nil, errors.New("header too large")
		}
		kind := arcKind(&f)
		if kind == 0 {
			others = append(others, f)
			continue
		}
		if len(f.Raw) > maxSignature {
			return nil, nil, errors.New("a set is too large")
		}
		i, tags, err := instance(&f, kind)
		if err != nil {
			return nil, nil, err
		}
		for len(sets) < i {
			sets = append(sets, set{})
		}
		if !sets[i-1].add(kind, &f, tags) {
			return nil, nil, fmt.Errorf("two fields of a kind in set %d", i)
		}
	}
	for i := range sets {
		s := &sets[i]
		want := "pass"
		if i == 0 {
			want = "none"
		}
		_, fields := s.sealTags["h"]
		switch {
		case s.seal == nil || s.signature == nil || s.results == nil:
			return nil, nil, fmt.Errorf("set %d is not complete", i+1)
		case fields: // RFC 8617 section 4.1.3
			return nil, nil, fmt.Errorf("the seal of set %d has h=", i+1)
		case s.sealTags["cv"] != want:
			return nil, nil, fmt.Errorf("set %d says cv=%.10s", i+1, s.sealTags["cv"])
		}
	}
	return sets, others, nil
}

// arcKind is s for a seal, m for a signature of the message, r for results, 0 for any other field.
func arcKind(f *rfc5322.Field) byte {
	switch {
	case rfc5322.EqualName(f.Name(), "ARC-Seal"):
		return 's'
	case rfc5322.EqualName(f.Name(), "ARC-Message-Signature"):
		return 'm'
	case rfc5322.EqualName(f.Name(), "ARC-Authentication-Results"):
		return 'r'
	}
	return 0
}

// instance is the number of the set that a field belongs to.
func instance(f *rfc5322.Field, kind byte) (i int, tags map[string]string, err error) {
	body := string(f.Body())
	if kind == 'r' {
		body, _, _ = strings.Cut(body, ";")
	}
	tags = dkimkey.Tags(body)
	i, err = strconv.Atoi(tags["i"])
	if err != nil || i < 1 || i > maxSets {
		return 0, nil, fmt.Errorf("a set with the number %.10q", tags["i"])
	}
	return i, tags, nil
}

// add puts a field into the set, unless it has one of the kind.
func (s *set) add(kind byte, f *rfc5322.Field, tags map[string]string) bool {
	at := &s.results
	switch kind {
	case 's':
		at, s.sealTags = &s.seal, tags
	case 'm':
		at, s.sigTags = &s.signature, tags
	}
	if *at != nil {
		return false // and the chain is none
	}
	*at = f
	return true
}

// sealer is the domain that has added the set, in lower case.
func (s *set) sealer() string { return strings.ToLower(s.sealTags["d"]) }

// passed says whether the set's results say that the message passed DMARC as one of the author's
// domain.
func (s *set) passed(author string) bool {
	text, ok := bareResults(string(Unfolded(s.results.Body())))
	if !ok {
		return false
	}
	if _, text, ok = strings.Cut(text, ";"); !ok {
		return false
	}
	_, list, err := authres.Parse(strings.TrimSpace(text))
	if err != nil {
		return false
	}
	n, passed := 0, false
	for _, r := range list {
		if d, ok := r.(*authres.DMARCResult); ok {
			n++
			passed = d.Value == authres.ResultPass && strings.EqualFold(strings.TrimSuffix(d.From, "."), author)
		}
	}
	// Of several, one may be in an address that the sealer has quoted badly.
	return passed && n == 1
}

// bareResults is the text of results without comments, and with harmless characters in place of those that are
// quoted: an address of a stranger's choice may have "; dmarc=pass" in it. ok is false where a quotation or
// a comment does not end.
func bareResults(text string) (bare string, ok bool) {
	var b strings.Builder
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		c := text[i]
		escaped := c == '\\' && (quoted || depth > 0) && i+1 < len(text)
		if escaped {
			i++
		}
		switch {
		case depth > 0 && !escaped && c == '(':
			depth++
		case depth > 0 && !escaped && c == ')':
			depth--
		case depth > 0:
		case quoted && !escaped && c == '"':
			quoted = false
		case quoted && (escaped || strings.IndexByte(" \t;=()", c) >= 0):
			b.WriteByte('_')
		case quoted:
			b.WriteByte(c)
		case c == '"':
			quoted = true
		case c == '(':
			depth++
			b.WriteByte(' ')
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), depth == 0 && !quoted
}

// verifyContent verifies the signature of a set over the message (RFC 8617 section 4.1.2).
func (c *Checker) verifyContent(ctx context.Context, s *set, fields []rfc5322.Field, m *Message) error {
	tags := s.sigTags
	header, body, _ := strings.Cut(cmp.Or(tags["c"], "simple"), "/")
	body = cmp.Or(body, "simple")
	names := strings.Split(tags["h"], ":")
	signs := func(name string) (n int) {
		for _, s := range names {
			if strings.EqualFold(strings.TrimSpace(s), name) {
				n++
			}
		}
		return n
	}
	authors := 0 // fields; one more than are signed could name anybody
	for i := range fields {
		if rfc5322.EqualName(fields[i].Name(), "From") {
			authors++
		}
	}
	_, partial := tags["l"]
	switch {
	case header != "relaxed" && header != "simple" || body != "relaxed" && body != "simple":
		return errors.New("unknown canonicalization")
	case len(names) > maxNames || signs("From") < max(authors, 1) || signs("ARC-Seal") > 0:
		return errors.New("the signature does not cover what it must")
	case partial:
		return errors.New("the signature covers a part of the body only")
	}
	sum, err := bodyHash(m.Body(), body == "relaxed")
	if err != nil {
		return err
	}
	if want, err := base64.StdEncoding.DecodeString(tags["bh"]); err != nil || !bytes.Equal(sum, want) {
		return errors.New("the body was changed")
	}
	h := sha256.New()
	last := map[string]int{} // how many of the fields of a name are taken, from the bottom
	for _, n := range names {
		n = strings.ToLower(strings.TrimSpace(n))
		if f := fromBottom(fields, n, last[n]); f != nil {
			h.Write(canonical(f.Raw, header == "relaxed"))
		}
		last[n]++
	}
	h.Write(bytes.TrimSuffix(canonical(withoutSignature(s.signature.Raw), header == "relaxed"), crlf))
	return c.verify(ctx, tags, h.Sum(nil))
}

// fromBottom is the field of a name that has so many of its name below it; nil if there is none.
func fromBottom(fields []rfc5322.Field, name string, below int) *rfc5322.Field {
	for i := len(fields) - 1; i >= 0; i-- {
		if rfc5322.EqualName(fields[i].Name(), name) {
			if below == 0 {
				return &fields[i]
			}
			below--
		}
	}
	return nil
}

// verifySeal verifies the seal of the last of some sets, over all of them (RFC 8617 section 5.1.1).
func (c *Checker) verifySeal(ctx context.Context, sets []set) error {
	h := sha256.New()
	for i := range sets {
		s := &sets[i]
		h.Write(canonical(s.results.Raw, true))
		h.Write(canonical(s.signature.Raw, true))
		if i < len(sets)-1 {
			h.Write(canonical(s.seal.Raw, true))
		}
	}
	s := &sets[len(sets)-1]
	h.Write(bytes.TrimSuffix(canonical(withoutSignature(s.seal.Raw), true), crlf))
	if err := c.verify(ctx, s.sealTags, h.Sum(nil)); err != nil {
		return fmt.Errorf("seal %d: %w", len(sets), err)
	}
	return nil
}

// errKeyUnknown says that the DNS did not answer.
var errKeyUnknown = errors.New("the key cannot be had now")

// verify verifies a signature over a hash with the key that its tags name.
func (c *Checker) verify(ctx context.Context, tags map[string]string, sum []byte) error {
	signature, err := base64.StdEncoding.DecodeString(tags["b"])
	if err != nil {
		return errors.New("malformed signature")
	}
	name := tags["s"] + "._domainkey." + tags["d"]
	if !resolver.ValidHostname(tags["d"]) || tags["s"] == "" {
		return errors.New("malformed names")
	}
	a, err := c.dns.TXT(ctx, name)
	switch {
	case resolver.NotFound(err) || err == nil && len(a.Records) == 0:
		return errors.New("there is no key")
	case err != nil:
		return fmt.Errorf("%w: %s", errKeyUnknown, name)
	}
	key, err := publicKey(a.Records[0])
	if err != nil {
		return err
	}
	good := false
	switch k := key.(type) {
	case *rsa.PublicKey:
		good = tags["a"] == "rsa-sha256" && rsa.VerifyPKCS1v15(k, crypto.SHA256, sum, signature) == nil
	case ed25519.PublicKey: // RFC 8463 section 3: the hash is what is signed
		good = tags["a"] == "ed25519-sha256" && ed25519.Verify(k, sum, signature)
	}
	if !good {
		return errors.New("the signature is not good")
	}
	return nil
}

// publicKey reads a key record, RFC 6376 section 3.6.1.
func publicKey(text string) (crypto.PublicKey, error) {
	tags := dkimkey.Tags(text)
	data, err := base64.StdEncoding.DecodeString(tags["p"])
	switch v, versioned := tags["v"]; {
	case len(text) > maxKeyRecord:
		return nil, errors.New("the key is too long")
	case versioned && v != "DKIM1" || err != nil || len(data) == 0:
		return nil, errors.New("the key is malformed or revoked")
	}
	if tags["k"] == "ed25519" {
		if len(data) != ed25519.PublicKeySize {
			return nil, errors.New("the key is malformed")
		}
		return ed25519.PublicKey(data), nil
	}
	key, err := x509.ParsePKIXPublicKey(data)
	if err != nil {
		key, err = x509.ParsePKCS1PublicKey(data)
	}
	k, ok := key.(*rsa.PublicKey)
	if err != nil || !ok || k.N.BitLen() < dkimkey.MinBits {
		return nil, errors.New("the key is malformed, or too short")
	}
	return k, nil
}

// withoutSignature is a field with an empty b=.
func withoutSignature(raw []byte) []byte {
	colon := bytes.IndexByte(raw, ':')
	out := slices.Clone(raw[:colon+1])
	for i, part := range bytes.Split(raw[colon+1:], []byte(";")) {
		if i > 0 {
			out = append(out, ';')
		}
		name, _, ok := bytes.Cut(part, []byte("="))
		if ok && string(bytes.TrimSpace(name)) == "b" {
			part = append(slices.Clone(name), '=')
			if i == bytes.Count(raw[colon+1:], []byte(";")) { // the last tag has the end of the field
				part = append(part, crlf...)
			}
		}
		out = append(out, part...)
	}
	return out
}

// canonical is a field, which ends in CRLF, by RFC 6376 section 3.4.
func canonical(raw []byte, relaxed bool) []byte {
	if !relaxed {
		return raw
	}
	name, value, _ := bytes.Cut(raw, []byte(":"))
	out := append(bytes.ToLower(bytes.TrimSpace(name)), ':')
	space := false
	start := len(out)
	for i, c := range value {
		switch {
		case c == ' ' || c == '\t':
			space = true
		case c == '\r' && i+1 < len(value) && value[i+1] == '\n', c == '\n': // but not a CR alone
		default:
			if space && len(out) > start {
				out = append(out, ' ')
			}
			out, space = append(out, c), false
		}
	}
	return append(out, crlf...)
}
