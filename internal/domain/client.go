package domain

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"posthaste/internal/resolver"
)

// maxConfig bounds what is read of a client configuration, in octets.
const maxConfig = 64 << 10

// srvName is the name under which users' programs look for a port (RFC 6186, RFC 8314).
func srvName(p Port, domain string) string {
	if p.Wrapped {
		return "_submissions._tcp." + domain
	}
	return "_submission._tcp." + domain
}

// srvRecord leads users' programs to a port.
func srvRecord(p Port, domain, host string) Record {
	return Record{srvName(p, domain), "SRV", fmt.Sprintf("0 1 %d %s.", p.Number, host), "where users' programs submit mail (RFC 6186, RFC 8314)"}
}

// submission checks that users' programs find the ports at which mail is submitted.
func (c *checker) submission(ctx context.Context, r *report) {
	if c.class == Foreign {
		return
	}
	for _, p := range c.site.Ports {
		a, err := c.DNS.SRV(ctx, srvName(p, c.domain))
		switch {
		case resolver.NotFound(err):
			r.say(Note, fmt.Sprintf("%s does not exist, though port %d takes submissions", srvName(p, c.domain), p.Number), "users' programs have to guess", srvRecord(p, c.domain, c.site.Host))
		case err != nil:
			r.unanswered(err)
		case !slices.ContainsFunc(a.Records, func(s resolver.SRV) bool { return s.Port == p.Number && c.leadsHere(ctx, s.Target) }):
			r.say(Warning, fmt.Sprintf("%s does not lead to port %d of this host", srvName(p, c.domain), p.Number), "users' programs submit their mail elsewhere", srvRecord(p, c.domain, c.site.Host))
		default:
			r.good("%s leads here", srvName(p, c.domain))
		}
	}
}

// leadsHere says whether a host is this machine. If that is not known, its name decides.
func (c *checker) leadsHere(ctx context.Context, host string) bool {
	if len(c.site.Addrs) == 0 {
		return strings.EqualFold(host, c.site.Host)
	}
	a, err := c.DNS.Addrs(ctx, host, both)
	return err == nil && slices.ContainsFunc(a.Records, c.site.has)
}

// autoconfig checks the configuration that Thunderbird and others fetch
// (draft-ietf-mailmaint-autoconfig). A domain need not have one.
func (c *checker) autoconfig(ctx context.Context, r *report) {
	if c.class == Foreign || len(c.site.Ports) == 0 {
		return
	}
	if _, err := c.DNS.Addrs(ctx, "autoconfig."+c.domain, both); err != nil {
		if resolver.NotFound(err) {
			r.say(Note, "autoconfig."+c.domain+" does not exist", "Thunderbird's users have to guess, or know, the names of the servers")
		} else {
			r.unanswered(err)
		}
		return
	}
	config, err := c.fetchConfig(ctx)
	if err != nil {
		r.say(Error, "the configuration at autoconfig."+c.domain+" cannot be used: "+printable(err.Error()), "users' programs that ask for it fall back to guessing")
		return
	}
	for _, s := range config.Provider.Outgoing {
		if s.Type == "smtp" && c.leadsHere(ctx, s.Hostname) && slices.ContainsFunc(c.site.Ports, func(p Port) bool { return p.Number == s.Port }) {
			r.good("autoconfig.%s leads to port %d of %s", c.domain, s.Port, printable(s.Hostname))
			return
		}
	}
	r.say(Error, "the configuration at autoconfig."+c.domain+" has no outgoing server that is a submission port of this host", "users' programs submit their mail elsewhere")
}

// A clientConfig is what is read of the document.
type clientConfig struct {
	XMLName  xml.Name `xml:"clientConfig"`
	Provider struct {
		Outgoing []struct {
			Type     string `xml:"type,attr"`
			Hostname string `xml:"hostname"`
			Port     uint16 `xml:"port"`
		} `xml:"outgoingServer"`
	} `xml:"emailProvider"`
}

func (c *checker) fetchConfig(ctx context.Context) (*clientConfig, error) {
	url := "https://autoconfig." + c.domain + "/mail/config-v1.1.xml?emailaddress=postmaster@" + c.domain
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d, expected 200", url, resp.StatusCode)
	}
	config := new(clientConfig)
	if err := xml.NewDecoder(io.LimitReader(resp.Body, maxConfig)).Decode(config); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return config, nil
}
