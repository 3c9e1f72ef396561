package acme

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mholt/acmez/v3/acme"
	"github.com/miekg/dns"

	"posthaste/internal/subprocess"
)

const (
	updateTime  = 20 * time.Second // for each question and update
	commandTime = 2 * time.Minute
	undoTime    = commandTime + 10*time.Second
	visibleTime = 3 * time.Minute // until all name servers should have a record
	visibleWait = 5 * time.Second // between two looks
	recordTTL   = 60              // seconds
	maxPrinted  = 400             // octets of what a command printed
)

// A publisher changes TXT records. Both methods return when its server has them.
type publisher interface {
	add(ctx context.Context, name, text string) error
	remove(ctx context.Context, name, text string) error
}

// A dnsSolver answers dns-01: it publishes records, and waits until all name servers have them.
type dnsSolver struct {
	publisher
	*view
	patience time.Duration // until all name servers should have the records
	warn     func(format string, args ...any)
}

func (d *dnsSolver) present(ctx context.Context, c acme.Challenge) (func(context.Context), error) {
	name, text := recordOf(c)
	if err := d.add(ctx, name, text); err != nil {
		// It may be there nevertheless: the command may have hung after that, or the answer of the server been lost. If it
		// is not, there is nothing to say.
		_ = d.remove(context.WithoutCancel(ctx), name, text)
		return nil, fmt.Errorf("publish %s: %w", name, err)
	}
	return func(ctx context.Context) {
		if err := d.remove(ctx, name, text); err != nil {
			d.warn("the record stays: %s IN TXT %q: %v", name, text, err)
		}
	}, nil
}

// recordOf is the TXT record that answers a challenge.
func recordOf(c acme.Challenge) (name, text string) {
	return "_acme-challenge." + strings.TrimPrefix(c.Identifier.Value, "*."), c.DNS01KeyAuthorization()
}

// settle returns when all name servers of the zones show the records, or after d.patience, with a warning for each that
// some do not: the authority decides then. The time is one for all, so that a name server that does not follow does not use
// up the attempt. The error is that of ctx.
func (d *dnsSolver) settle(ctx context.Context, list []acme.Challenge) error {
	end := time.Now().Add(d.patience)
	for _, c := range list {
		name, text := recordOf(c)
		if err := d.wait(ctx, name, text, end); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for one record until end, and looks once at least.
func (d *dnsSolver) wait(ctx context.Context, name, text string, end time.Time) error {
	for {
		err := d.shown(ctx, name, text)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !time.Now().Before(end):
			d.warn("%s is not visible everywhere after %v, and the authority is asked nevertheless: %v", name, d.patience, err)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(visibleWait):
		}
	}
}

// shown says whether all name servers of a name's zone show a text.
func (d *dnsSolver) shown(ctx context.Context, name, text string) error {
	return d.Everywhere(ctx, name, func(server asker) error {
		a, err := server.TXT(ctx, name)
		if err == nil && !slices.Contains(a.Records, text) {
			err = fmt.Errorf("%s has other records", name)
		}
		return err
	})
}

// An updater publishes by dynamic updates (RFC 2136), signed with TSIG (RFC 8945).
type updater struct {
	server string // host:port
	key    *tsigKey
}

func (u *updater) add(ctx context.Context, name, text string) error {
	return u.update(ctx, name, func(m *dns.Msg, rr dns.RR) { m.Insert([]dns.RR{rr}) }, text)
}

func (u *updater) remove(ctx context.Context, name, text string) error {
	return u.update(ctx, name, func(m *dns.Msg, rr dns.RR) { m.Remove([]dns.RR{rr}) }, text)
}

func (u *updater) update(ctx context.Context, name string, change func(*dns.Msg, dns.RR), text string) error {
	zone, err := u.zone(ctx, name)
	if err != nil {
		return err
	}
	m := new(dns.Msg)
	m.SetUpdate(zone)
	change(m, &dns.TXT{Hdr: dns.RR_Header{Name: dns.Fqdn(name), Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: recordTTL}, Txt: []string{text}})
	_, err = u.exchange(ctx, m)
	return err
}

// zone asks the server which of its zones a name is in.
func (u *updater) zone(ctx context.Context, name string) (string, error) {
	for at := dns.Fqdn(name); at != "" && at != "."; _, at, _ = strings.Cut(at, ".") {
		m := new(dns.Msg)
		m.SetQuestion(at, dns.TypeSOA)
		r, err := u.exchange(ctx, m)
		var refused rcode
		if errors.As(err, &refused) {
			continue // it may be below a zone that the server has
		}
		if err != nil {
			return "", err
		}
		for _, rr := range r.Answer {
			if soa, ok := rr.(*dns.SOA); ok && r.Authoritative {
				return soa.Hdr.Name, nil
			}
		}
	}
	return "", fmt.Errorf("name server %s has no zone for %s", u.server, name)
}

// A rcode is the refusal of a name server.
type rcode struct {
	server string
	code   int
}

func (r rcode) Error() string {
	text := fmt.Sprintf("name server %s: %s", r.server, dns.RcodeToString[r.code])
	if r.code == dns.RcodeRefused || r.code == dns.RcodeNotAuth {
		text += ": it does not permit the update with the key of tls_acme_update_key_file"
	}
	return text
}

func (u *updater) exchange(ctx context.Context, m *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, updateTime)
	defer cancel()
	c := &dns.Client{Net: "tcp", Timeout: updateTime}
	if u.key != nil {
		c.TsigSecret = map[string]string{u.key.name: u.key.secret}
		m.SetTsig(u.key.name, u.key.algorithm, 300, time.Now().Unix())
	}
	r, _, err := c.ExchangeContext(ctx, m, u.server)
	if r != nil && r.Rcode != dns.RcodeSuccess {
		if t := r.IsTsig(); t != nil && t.Error == dns.RcodeBadTime {
			return nil, fmt.Errorf("name server %s: the time of the update is wrong: is the clock of this machine right?", u.server)
		}
		return nil, rcode{u.server, r.Rcode}
	}
	if err != nil {
		return nil, fmt.Errorf("name server %s: %w", u.server, err)
	}
	return r, nil
}

// A commander publishes by a command.
type commander []string

func (c commander) add(ctx context.Context, name, text string) error {
	return c.run(ctx, "present", name, text)
}

func (c commander) remove(ctx context.Context, name, text string) error {
	return c.run(ctx, "cleanup", name, text)
}

func (c commander) run(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := subprocess.New(ctx, slices.Concat(c, args)...)
	out := &subprocess.Output{Most: maxPrinted}
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, "/"
	err := cmd.Run()
	if ctx.Err() == context.DeadlineExceeded {
		err = fmt.Errorf("it took longer than %v", commandTime)
	}
	if err == nil {
		return nil
	}
	if said := strings.Join(strings.Fields(string(out.Text)), " "); said != "" {
		return fmt.Errorf("tls_acme_command: %s %s: %w: %s", c[0], args[0], err, said)
	}
	return fmt.Errorf("tls_acme_command: %s %s: %w", c[0], args[0], err)
}
