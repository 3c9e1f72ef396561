package dkimkey

import (
	"context"
	"fmt"
	"strings"

	"posthaste/internal/table"
)

// maxEntries bounds the keys of one entry of dkim_sign_maps: each signs every message.
const maxEntries = 5

// An Entry is one signature that dkim_sign_maps asks for.
type Entry struct {
	Domain   string // in whose name is signed, lower case
	Selector string
	File     string // an absolute path, which Read reads
}

// Find gives the entries for a domain, which is in lower case: those of the domain itself, or
// of one above it, under the key .example.com. There are none where maps has no such key. For the
// mail of a tenant, keys with its name before them, shop/example.com and shop/.com, come first, so that a
// domain can be signed for one tenant alone. tenant is empty for mail without one. Tables of
// patterns, and static:, are asked about the domain itself, and not about those above it. It
// may be called concurrently.
func Find(ctx context.Context, maps *table.Maps, tenant, domain string) ([]Entry, error) {
	// A sender chooses the domain. None has a slash, and no mail is to pass for a tenant's by one.
	if strings.Contains(domain, "/") {
		return nil, nil
	}
	if tenant != "" {
		if list, err := find(ctx, maps, tenant+"/", domain); err != nil || len(list) > 0 {
			return list, err
		}
	}
	return find(ctx, maps, "", domain)
}

// find looks for keys that begin with prefix.
func find(ctx context.Context, maps *table.Maps, prefix, domain string) ([]Entry, error) {
	key := domain
	for {
		value, found, err := maps.Lookup(ctx, prefix+key, key != domain)
		if err != nil {
			return nil, err
		}
		if found {
			return ParseEntries(value, strings.TrimPrefix(key, "."))
		}
		_, parent, ok := strings.Cut(strings.TrimPrefix(key, "."), ".")
		if !ok {
			return nil, nil
		}
		key = "." + parent
	}
}

// ParseEntries reads the right-hand side of a table: selector:file or domain:selector:file,
// several of them with spaces or commas between. domain is that of the entry, which signs where no
// other one is named.
func ParseEntries(value, domain string) ([]Entry, error) {
	words := table.SplitList(value)
	if len(words) > maxEntries {
		return nil, fmt.Errorf("dkim_sign_maps: %s: %d keys, expected at most %d", domain, len(words), maxEntries)
	}
	var list []Entry
	for _, w := range words {
		e := Entry{Domain: domain}
		parts := strings.SplitN(w, ":", 3)
		if len(parts) == 3 {
			e.Domain, parts = strings.ToLower(parts[0]), parts[1:]
		}
		if len(parts) != 2 || e.Domain == "" || parts[0] == "" || !strings.HasPrefix(parts[1], "/") {
			return nil, fmt.Errorf("dkim_sign_maps: %s: %q: expected selector:/path/of/key or domain:selector:/path/of/key", domain, w)
		}
		e.Selector, e.File = parts[0], parts[1]
		list = append(list, e)
	}
	return list, nil
}
