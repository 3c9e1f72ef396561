// DKIM signatures: whose mail is signed, with which keys, and over which fields. The
// algorithm is package mailauth's; keys and the table that names them are package dkimkey's.

package cleanup

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mailauth"
	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/milter"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
)

// A signer signs mail by DKIM, RFC 6376: mail of our own users, which is what
// was submitted here, by an authenticated client, or from one of
// dkim_sign_networks. It is the last thing done to a message before it is
// queued. The domain of the From: address decides on the keys, and whose mail it is, where a
// tenant has keys of its own; each key of the entry in dkim_sign_maps makes a signature.
//
// A message that has been here before, since it is queued again, forwarded by local or brought back by
// a filter behind the queue, is signed in place of its former signature by the same key.
//
// A message that should be signed and cannot be, because a table or key is
// not to be had, is not queued unsigned: the client is asked to try later.
//
// Its methods may be called concurrently.
type signer struct {
	maps     *table.Maps
	networks *table.List
	names    []string
	// dkim_oversign_headers, in lower case: signed once more than they occur, so that
	// nobody can add one
	over     map[string]bool
	lifetime time.Duration
	// The time for expirations; time.Now, but in tests.
	now func() time.Time

	mu   sync.Mutex
	keys map[string]*signingKey // by path
}

// signingKey is a key as it was read, and the modification time of its file then. A file
// that has changed is read again, so that a key can be replaced without a reload.
type signingKey struct {
	changed time.Time
	key     crypto.Signer
}

// newSigner reads what is to be signed; nil when nothing is. Keys are read when they are
// first used.
func newSigner(cfg *config.Config, o table.Options) (*signer, error) {
	list := cfg.List("dkim_sign_maps")
	if len(list) == 0 {
		return nil, nil
	}
	s := &signer{maps: table.OpenMaps("dkim_sign_maps", list, o), over: make(map[string]bool), now: time.Now,
		lifetime: cfg.Duration("dkim_signature_lifetime"), keys: make(map[string]*signingKey)}
	// A signature that does not cover From says nothing about the author.
	from := false
	for _, n := range cfg.List("dkim_sign_headers") {
		s.names = append(s.names, strings.ToLower(n))
		from = from || strings.EqualFold(n, "from")
	}
	if !from {
		return nil, errors.New("dkim_sign_headers: the list must have from (RFC 6376 section 5.4)")
	}
	// RFC 8058 section 4: who offers one click looks whether a signature covers both.
	if cfg.String("unsubscribe_url") != "" {
		for _, n := range []string{"list-unsubscribe", "list-unsubscribe-post"} {
			if !slices.Contains(s.names, n) {
				s.names = append(s.names, n)
			}
		}
	}
	for _, n := range cfg.List("dkim_oversign_headers") {
		s.over[strings.ToLower(n)] = true
	}
	var err error
	s.networks, err = table.NewList(cfg.Source("dkim_sign_networks"), cfg.List("dkim_sign_networks"), table.ListOptions{Kind: table.Clients, Table: o})
	return s, err
}

// Close closes the table. A nil signer has none.
func (s *signer) Close() error {
	if s == nil {
		return nil
	}
	return s.maps.Close()
}

// ours says whether the message comes from somebody for whom we answer. The error is that
// of a table.
func (s *signer) ours(ctx context.Context, m *Message) (bool, error) {
	c := &m.env.Client
	if c.Addr == "" || m.env.SASL.Username != "" {
		return true, nil
	}
	return s.networks.MatchClient(ctx, c.Name, c.Addr)
}

// sign signs a message that is to be queued. A message that should be signed and cannot
// be is refused for now: receivers may reject it without a signature.
func (in *incoming) sign(res *Result) {
	s := in.s.opt.Signer
	if s == nil || res.Discard || res.Refused != nil || len(res.Envelope.Recipients) == 0 || in.fault != nil {
		return
	}
	err := in.addSignatures(s)
	res.Envelope = in.msg.env
	switch {
	case err == nil:
		return
	case errors.Is(err, errHead):
		in.fault = err
		return
	}
	in.s.opt.Log.Warning("%s: message not accepted, try again later: not signed: %v", in.msg.id, err)
	in.msg.failed(statWrite, fmt.Sprintf("not signed: %v", err))
	res.Refused, res.Bounce = in.msg.stat.refusal(""), false
	res.Refused.Cause = in.msg.cause
}

// addSignatures puts a signature for each key on top of the message. Nothing is changed
// on error.
func (in *incoming) addSignatures(s *signer) error {
	ctx := in.ctx
	if ours, err := s.ours(ctx, &in.msg); err != nil || !ours {
		return err
	}
	c, err := in.content()
	if err != nil {
		return err
	}
	domain := fromDomain(c.Fields, in.msg.env.Sender)
	if domain == "" {
		return nil
	}
	keys, err := s.keysFor(ctx, in.msg.env.Tenant, domain)
	if err != nil || len(keys) == 0 {
		return err
	}
	c.Fields = withoutOurs(c.Fields, keys)
	// The body is read once, however many keys sign.
	body, err := mailauth.BodyHash(io.NewSectionReader(c.Body, 0, c.BodySize))
	if err != nil {
		return err
	}
	var made []milter.Field
	for _, k := range keys {
		raw, err := s.signature(c, &k, body)
		if err != nil {
			return fmt.Errorf("domain %s, selector %s: %w", k.domain, k.selector, err)
		}
		made = append(made, milter.Field{Name: "DKIM-Signature", Raw: raw})
	}
	// On top, as a trace field (RFC 6376 section 3.5): what is below was there when it
	// was made.
	c.Fields = append(made, c.Fields...)
	in.replace(c)
	return nil
}

// withoutOurs leaves out signatures by the keys that sign now. A message that is queued
// again, is forwarded, or comes back from a filter got them when it first came in. They
// are made anew, for what the message is now. Signatures by others are left alone (RFC
// 6376 section 4.2).
func withoutOurs(fields []milter.Field, keys []use) []milter.Field {
	return slices.DeleteFunc(fields, func(f milter.Field) bool {
		domain, selector := mailauth.Signer(f.Raw)
		return slices.ContainsFunc(keys, func(k use) bool { return k.domain == domain && strings.EqualFold(k.selector, selector) })
	})
}

// fromDomain is the domain of the first address in From, in lower case; without From,
// that of the envelope sender. DMARC goes by the From domain, so a signature by another
// would not help.
func fromDomain(fields []milter.Field, sender string) string {
	for _, f := range fields {
		if !strings.EqualFold(f.Name, "From") {
			continue
		}
		fd, ok := rfc5322.ParseField(f.Raw)
		if !ok {
			continue
		}
		body := string(fd.Body())
		for _, a := range rfc5322.AppendAddresses(nil, body, 0) {
			if d := rfc5322.Domain(a.Addr); d != "" {
				return strings.ToLower(d)
			}
		}
	}
	return strings.ToLower(rfc5322.Domain(sender))
}

// use is one signature to be made.
type use struct {
	domain, selector string
	key              crypto.Signer
}

// keysFor finds the keys that a tenant's mail from a domain is signed with; none is no error.
func (s *signer) keysFor(ctx context.Context, tenant, domain string) ([]use, error) {
	entries, err := dkimkey.Find(ctx, s.maps, tenant, domain)
	if err != nil {
		return nil, err
	}
	list := make([]use, len(entries))
	for i, e := range entries {
		list[i] = use{domain: e.Domain, selector: e.Selector}
		// All keys or none: a selector that is missing shows up only at receivers.
		if list[i].key, err = s.key(e.File); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// key is the key in a file, read when it is new or has changed since.
func (s *signer) key(path string) (crypto.Signer, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("DKIM key: %w", err)
	}
	// Reading and parsing a key takes longer than signing with it.
	s.mu.Lock()
	k := s.keys[path]
	s.mu.Unlock()
	if k != nil && k.changed.Equal(fi.ModTime()) {
		return k.key, nil
	}
	// Outside the lock: a disk that is slow with one tenant's key must not keep the mail of all others. Two may
	// read the same one then.
	key, err := dkimkey.Read(path)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[path] = &signingKey{fi.ModTime(), key}
	return key, nil
}

// signature makes one DKIM-Signature field of a message whose body has that hash.
func (s *signer) signature(c *milter.Content, u *use, body []byte) ([]byte, error) {
	names := s.headerKeys(c.Fields)
	if len(names) > maxKeys {
		return nil, errHead
	}
	o := &mailauth.Signing{Domain: u.domain, Selector: u.selector, Key: u.key, Names: names, Fields: s.covered(c.Fields, names)}
	// A signature that is to expire says when it was made, too: receivers judge by both. One that
	// is not says neither: see mailauth.Signing.
	if s.lifetime > 0 {
		o.Made = s.now()
		o.Expires = o.Made.Add(s.lifetime)
	}
	raw, err := mailauth.Sign(o, body)
	if err != nil {
		return nil, err
	}
	// What is made becomes part of the header, and is checked like anybody's.
	if _, ok := rfc5322.ParseField(raw); !ok {
		return nil, fmt.Errorf("the signature is no header field: %.80q", raw)
	}
	return raw, nil
}

// maxKeys bounds how many fields a signature covers. Receivers look for each name in all fields: a
// hostile header must not take them seconds.
const maxKeys = 1 << 10

// covered are the fields for the names of h=, of each name from the bottom upwards (RFC 6376
// section 5.4.2); nil where there is no further one.
func (s *signer) covered(fields []milter.Field, names []string) [][]byte {
	byName := make(map[string][][]byte, len(s.names))
	for i := range fields {
		n := strings.ToLower(fields[i].Name)
		if slices.Contains(s.names, n) {
			byName[n] = append(byName[n], fields[i].Raw)
		}
	}
	list := make([][]byte, len(names))
	for i, n := range names {
		if left := byName[n]; len(left) > 0 {
			list[i], byName[n] = left[len(left)-1], left[:len(left)-1]
		}
	}
	return list
}

// headerKeys names the fields to sign: those that occur, as often as they occur, and
// those to be oversigned once more (RFC 6376 section 5.4.2).
func (s *signer) headerKeys(fields []milter.Field) []string {
	count := make(map[string]int, len(fields))
	for i := range fields {
		count[strings.ToLower(fields[i].Name)]++
	}
	keys := make([]string, 0, len(s.names)+8)
	for _, n := range s.names {
		// Naming a field once more than it occurs covers its absence: adding one breaks
		// the signature.
		times := count[n]
		if s.over[n] {
			times++
		}
		for range times {
			keys = append(keys, n)
		}
	}
	return keys
}
