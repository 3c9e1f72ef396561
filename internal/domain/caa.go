package domain

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"posthaste/internal/resolver"
)

// maxDirectory bounds an authority's directory, in octets.
const maxDirectory = 64 << 10

// caa says who may issue certificates for the mail host (RFC 8659), and whether the authority of
// tls_acme is among them.
func (c *checker) caa(ctx context.Context, r *report) {
	wanted := c.caaRecords(ctx)
	for name := c.site.Host; strings.Contains(name, "."); _, name, _ = strings.Cut(name, ".") {
		a, err := c.DNS.CAA(ctx, name)
		if resolver.NotFound(err) {
			continue
		}
		if err != nil {
			r.unanswered(err)
			return
		}
		var issuers []string
		known := len(wanted) == 0
		for _, record := range a.Records {
			if record.Tag != "issue" || strings.TrimSpace(record.Value) == ";" {
				continue
			}
			issuers = append(issuers, printable(record.Value))
			who, _, _ := strings.Cut(record.Value, ";")
			known = known || slices.ContainsFunc(wanted, func(w Record) bool { return w.Data == issue(strings.ToLower(strings.TrimSpace(who))) })
		}
		switch {
		case len(issuers) == 0:
			r.say(Warning, fmt.Sprintf("the CAA records of %s let nobody issue certificates for %s", name, c.site.Host), "the next renewal fails", wanted...)
		case !known:
			r.say(Warning, fmt.Sprintf("the CAA records of %s do not name the authority of tls_acme_directory, but %s", name, strings.Join(issuers, ", ")), "the next renewal fails", wanted...)
		default:
			r.good("certificates for %s may be issued by %s", c.site.Host, strings.Join(issuers, ", "))
		}
		return
	}
	r.say(Note, c.site.Host+" has no CAA record", "any authority may issue a certificate for it", wanted...)
}

// issue is the value of a record that lets an authority issue certificates.
func issue(authority string) string { return `0 issue "` + authority + `"` }

// caaRecords let the authority of tls_acme, and nobody else, issue certificates for the mail host. The
// authority says by what name CAA records know it, in its directory (RFC 8555 section 7.1.1); there
// are none if it does not, or cannot be asked.
func (c *checker) caaRecords(ctx context.Context) (list []Record) {
	cfg := c.site.cfg
	if !cfg.Bool("tls_acme") {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.String("tls_acme_directory"), nil)
	if err != nil {
		return nil
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var directory struct {
		Meta struct {
			CAA []string `json:"caaIdentities"`
		} `json:"meta"`
	}
	if json.NewDecoder(io.LimitReader(resp.Body, maxDirectory)).Decode(&directory) != nil || resp.StatusCode != http.StatusOK {
		return nil
	}
	for _, name := range directory.Meta.CAA {
		if name = strings.ToLower(name); resolver.ValidHostname(name) {
			list = append(list, Record{c.site.Host, "CAA", issue(name), "who may issue certificates for the mail host (RFC 8659)"})
		}
	}
	return list
}
