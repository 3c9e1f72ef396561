package acme

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"posthaste/internal/nameserver"
	"posthaste/internal/resolver"
	"posthaste/internal/servercert"
)

// nextLook is how often it is looked whether the next key's TLSA records are visible.
const nextLook = 10 * time.Minute

// A dane is what the name servers say of the TLSA records of a key.
type dane struct {
	published bool          // there are TLSA records at all
	missing   string        // a record that is not shown everywhere, and where it is missing; or nothing
	ttl       time.Duration // how long others may have older records
}

// tlsa looks at the records for port 25 of names. data is that of the wanted one: 3 1 1 and a digest.
// A name without TLSA records needs none. The error says what could not be found out.
func (v *view) tlsa(ctx context.Context, names []string, data string) (d dane, err error) {
	for _, name := range names {
		if strings.HasPrefix(name, "*.") {
			continue // no host has the name
		}
		owner, err := nameserver.Canonical(ctx, v.DNS, "_25._tcp."+name)
		if err != nil {
			return d, err
		}
		some, lacks := false, false
		err = v.Everywhere(ctx, owner, func(server asker) error {
			a, err := server.TLSA(ctx, owner)
			if err != nil {
				if !resolver.NotFound(err) && resolver.KindOf(err) != resolver.Invalid {
					return err
				}
				lacks = true
				return nil
			}
			some, d.ttl = true, max(d.ttl, a.TTL)
			lacks = lacks || !has(a.Records, data)
			return nil
		})
		if err != nil {
			return d, err
		}
		d.published = d.published || some
		if some && lacks && d.missing == "" {
			d.missing = fmt.Sprintf("%s. IN TLSA %s", owner, data)
		}
	}
	return d, nil
}

// has says whether one of the records is the wanted one.
func has(records []resolver.TLSA, data string) bool {
	for _, r := range records {
		if fmt.Sprintf("%d %d %d %x", r.Usage, r.Selector, r.Matching, r.Data) == data {
			return true
		}
	}
	return false
}

// next says whether the next key, if there is one, may be used by now: then it is returned. Where the
// zone publishes TLSA records, that is when all its name servers have shown the next key's for twice
// the time that others may have kept older ones (RFC 7671 section 8.1).
func (m *manager) next(ctx context.Context, now time.Time) crypto.Signer {
	key, err := m.store.NextKey()
	if errors.Is(err, fs.ErrNotExist) {
		m.lookNext, m.waiting = time.Time{}, ""
		m.seen(time.Time{}, time.Time{})
		return nil
	}
	if now.Before(m.lookNext) {
		return nil
	}
	if m.lookNext = now.Add(nextLook); now.Before(m.state.Next) {
		return nil
	}
	if err != nil {
		m.waits(err.Error())
		return nil
	}
	data, err := servercert.TLSA(key.Public())
	var d dane
	if err == nil {
		d, err = m.view.tlsa(ctx, m.set.names, data)
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		m.waits(fmt.Sprintf("it is not known whether its TLSA records are visible: %v", err))
		return nil // what was seen counts
	case !d.published:
		return key
	case d.missing != "":
		m.waits("not every name server shows its record; publish: " + d.missing)
		m.seen(time.Time{}, time.Time{})
		return nil
	case m.state.Seen.IsZero():
		m.seen(now, now.Add(2*d.ttl))
	}
	if now.Before(m.state.Usable) {
		m.waits("every name server shows its TLSA record; others may have older ones until " + date(m.state.Usable))
		return nil
	}
	return key
}

// seen keeps since when the next key's record is shown everywhere, and when the key may be used.
func (m *manager) seen(since, usable time.Time) {
	if !since.Equal(m.state.Seen) {
		m.state.Seen, m.state.Usable = since, usable
		m.save()
	}
}

// waits says once for what the next key waits.
func (m *manager) waits(text string) {
	if text != m.waiting {
		m.log.Info("the next key waits: %s", text)
	}
	m.waiting = text
}

// promote makes the next key the key. The servers use it already.
func (m *manager) promote(former crypto.PublicKey) error {
	if err := m.store.Promote(); err != nil {
		return err
	}
	m.seen(time.Time{}, time.Time{})
	data, err := servercert.TLSA(former)
	if err != nil {
		return err
	}
	m.log.Info("the next key is in use: a TLSA record of the former one, %s, may be removed", data)
	return nil
}
