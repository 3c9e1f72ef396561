package domain

import (
	"context"
	"errors"
	"fmt"

	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/nameserver"
	"posthaste/internal/resolver"
)

// An Asker answers questions for texts.
type Asker interface {
	TXT(ctx context.Context, name string) (resolver.Answer[string], error)
}

// visible says whether every name server of the zone shows the key of a record, and only that one,
// and whether the resolver of this system does, too. The error says who does not, or that it could not
// be found out. In a network of its own, where no zone has name servers, what the resolver says is enough.
func (w *World) visible(ctx context.Context, r Record) error {
	// A selector may be an alias in the zone of a provider.
	name, err := nameserver.Canonical(ctx, w.DNS, r.Name)
	if err != nil {
		return err
	}
	zone := nameserver.View[Asker]{DNS: w.DNS, At: w.At}
	err = zone.Everywhere(ctx, name, func(server Asker) error { return shows(ctx, server, name, r.Data) })
	if err != nil && !errors.Is(err, nameserver.ErrNoZone) {
		return err
	}
	if err := shows(ctx, w.DNS, r.Name, r.Data); err != nil {
		return fmt.Errorf("the resolver of this system: %w", err)
	}
	return nil
}

// shows says whether somebody who is asked shows a key.
func shows(ctx context.Context, asker Asker, name, want string) error {
	a, err := asker.TXT(ctx, name)
	if err != nil {
		return err
	}
	if len(a.Records) > 1 {
		return fmt.Errorf("%s has %d records", name, len(a.Records))
	}
	if text, ok := publishes(a.Records[0], want); !ok {
		return fmt.Errorf("%s is another record: %s", name, text)
	}
	return nil
}

// publishes says whether the text of a record publishes the key of another, for use with mail; text
// is what there is, to be shown.
func publishes(have, want string) (text string, ok bool) {
	h, w := dkimkey.Tags(have), dkimkey.Tags(want)
	kind := h["k"]
	if kind == "" {
		kind = kindRSA // RFC 6376 section 3.6.1
	}
	ok = h["p"] == w["p"] && kind == w["k"] && (h["v"] == "" || h["v"] == "DKIM1") && (h["h"] == "" || contains(h["h"], "sha256")) &&
		(h["s"] == "" || contains(h["s"], "email") || contains(h["s"], "*"))
	return printable(have), ok
}
