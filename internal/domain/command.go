package domain

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
	"posthaste/internal/webclient"
)

const usage = `usage: posthaste domain add [-j] [--class local|virtual|relay|alias|none] [--dry-run] [--ed25519] [--login user] [-A address] [-a authority] [-c config_directory] [-i imap_host] [-p policy] [-r reports] domain
       posthaste domain rotate [-jq] [--dry-run] [--new] [-c config_directory] [domain ...]
       posthaste domain check [-bjq] [-A address] [-c config_directory] [-l list] [-o domain] [domain ...]
       posthaste domain records [-jt] [-A address] [-a authority] [-c config_directory] [-i imap_host] [-p policy] [-r reports] domain`

// probe is the domain whose mail servers are tried, to see whether port 25 is open outward:
// they are many, and always there.
const probe = "gmail.com"

// idna converts the names on the command line, as registries do today (IDNA2008).
var idna resolver.Names

// A command is one run of posthaste domain.
type command struct {
	cli.Tool
	verb    string
	dir     string
	addrs   []netip.Addr
	json    bool
	quiet   bool
	form    bool // records as web forms ask for them
	orders  orders
	wishes  Wishes
	choice  Choice
	domains []string

	Now      time.Time
	terminal bool // somebody can answer questions

	world func(cfg *config.Config) (*World, func(), error) // a test has its own
}

// Run runs posthaste domain, and returns its exit status.
func Run(name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &command{Tool: cli.Tool{Name: name, Stdin: stdin, Stdout: stdout, Stderr: stderr}, Now: time.Now(), terminal: isTerminal(stdin)}
	c.world = c.outside
	return c.run(args)
}

// isTerminal says whether somebody sits at the other end.
func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func (c *command) run(args []string) int {
	if err := c.parse(args); err != nil {
		return c.Fail(err)
	}
	w := &cli.ErrWriter{W: c.Stdout}
	c.Stdout = w
	status, err := c.act(context.Background())
	if err == nil && w.Err != nil {
		err = cli.Errorf(cli.ExitIO, "%w", w.Err)
	}
	if err != nil {
		return c.Fail(err)
	}
	return status
}

// letters are the options of each verb.
var letters = map[string]string{"add": "A:a:c:i:jp:r:", "check": "A:bc:jl:o:q", "records": "A:a:c:i:jp:r:t", "rotate": "c:jq"}

// longNames are the options with two dashes of each verb, and whether they have a value.
var longNames = map[string]map[string]bool{"add": {"class": true, "dry-run": false, "ed25519": false, "login": true}, "rotate": {"dry-run": false, "new": false}}

// parse reads the command line.
func (c *command) parse(args []string) error {
	if len(args) == 0 || letters[args[0]] == "" {
		return cli.Errorf(cli.ExitUsage, "%s", usage)
	}
	c.verb = args[0]
	args, err := c.long(args[1:])
	if err != nil {
		return cli.Errorf(cli.ExitUsage, "%w\n%s", err, usage)
	}
	opts, rest, err := cli.Getopt(args, letters[c.verb])
	if err != nil {
		return cli.Errorf(cli.ExitUsage, "%w\n%s", err, usage)
	}
	c.wishes.Probe, c.choice.Policy = probe, "none"
	for _, o := range opts {
		if err := c.option(o); err != nil {
			return cli.Errorf(cli.ExitUsage, "-%c: %w", o.Letter, err)
		}
	}
	if (c.verb == "add" || c.verb == "records") && len(rest) != 1 {
		return cli.Errorf(cli.ExitUsage, "%s", usage)
	}
	for _, d := range rest {
		ascii, ok := idna.ToASCII(d)
		if !ok || !strings.Contains(ascii, ".") {
			return cli.Errorf(cli.ExitUsage, "%q is not the name of a domain", d)
		}
		c.domains = append(c.domains, ascii)
	}
	return nil
}

// option reads one option.
func (c *command) option(o cli.Option) (err error) {
	switch o.Letter {
	case 'A':
		var a netip.Addr
		if a, err = netip.ParseAddr(o.Value); err == nil {
			c.addrs = append(c.addrs, a.Unmap().WithZone(""))
		}
	case 'a':
		c.choice.CA, err = hostOf(o.Value)
	case 'b':
		c.wishes.Blocklist = append(c.wishes.Blocklist, DefaultBlocklists...)
	case 'c':
		c.dir = o.Value
	case 'i':
		c.choice.IMAP, err = hostOf(o.Value)
	case 'j':
		c.json = true
	case 'l':
		var list string
		list, err = hostOf(o.Value)
		c.wishes.Blocklist = append(c.wishes.Blocklist, list)
	case 'o':
		if c.wishes.Probe = o.Value; o.Value != "" {
			c.wishes.Probe, err = hostOf(o.Value)
		}
	case 'p':
		if c.choice.Policy = o.Value; o.Value != "none" && o.Value != "quarantine" && o.Value != "reject" {
			err = fmt.Errorf("%q: expected none, quarantine or reject", o.Value)
		}
	case 'q':
		c.quiet = true
	case 't':
		c.form = true
	case 'r':
		if c.choice.Reports = o.Value; !address(o.Value) {
			err = fmt.Errorf("%q: expected user@domain", o.Value)
		}
	}
	return err
}

// long takes the options with two dashes off the command line.
func (c *command) long(args []string) (rest []string, err error) {
	for len(args) > 0 {
		word := args[0]
		if args = args[1:]; word == "--" {
			return append(append(rest, word), args...), nil
		}
		name, dashes := strings.CutPrefix(word, "--")
		if !dashes {
			rest = append(rest, word)
			continue
		}
		name, value, given := strings.Cut(name, "=")
		valued, known := longNames[c.verb][name]
		switch {
		case !known:
			return nil, fmt.Errorf("unknown option --%s", name)
		case !valued && given:
			return nil, fmt.Errorf("--%s has no value", name)
		case valued && !given && len(args) == 0:
			return nil, fmt.Errorf("--%s: expected a value", name)
		case valued && !given:
			value, args = args[0], args[1:]
		}
		if err := c.longOption(name, value); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// longOption notes one of them.
func (c *command) longOption(name, value string) error {
	switch name {
	case "class":
		if _, ok := classWords[value]; !ok {
			return fmt.Errorf("--class %q: expected local, virtual, relay, alias or none", value)
		}
		c.orders.class = value
	case "dry-run":
		c.orders.dry = true
	case "ed25519":
		c.orders.ed25519 = true
	case "new":
		c.orders.new = true
	case "login":
		if value == "" || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == ',' || r == 0x7f }) {
			return fmt.Errorf("--login %q: expected the name that a user logs in with", value)
		}
		c.orders.logins = append(c.orders.logins, value)
	}
	return nil
}

// address says whether a text is a plain mail address, which needs no quotes in a URI.
func address(text string) bool {
	user, host, ok := strings.Cut(text, "@")
	return ok && user != "" && strings.Trim(strings.ToLower(user), "abcdefghijklmnopqrstuvwxyz0123456789.-_+") == "" && resolver.ValidHostname(host)
}

// hostOf is a host's or a domain's name in ASCII.
func hostOf(text string) (string, error) {
	ascii, ok := idna.ToASCII(text)
	if !ok {
		return "", fmt.Errorf("%q is not the name of a host or a domain", text)
	}
	return ascii, nil
}

// act reads the configuration and does what is asked.
func (c *command) act(ctx context.Context) (status int, err error) {
	cfg, err := config.Load(config.Dir(c.dir))
	if err != nil {
		return 0, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	services, _, err := config.LoadMaster(cfg.Dir(), cfg)
	if err != nil {
		return 0, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	site, err := OpenSite(ctx, cfg, services, c.addrs, func(text string) { c.Warn("%s", text) })
	if err != nil {
		return 0, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	defer site.Close()
	switch c.verb {
	case "records":
		return 0, c.records(ctx, site)
	case "add":
		return 0, c.add(ctx, cfg, site)
	}
	world, closing, err := c.world(cfg)
	if err != nil {
		return 0, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	defer closing()
	if c.verb == "rotate" {
		return 0, c.rotate(ctx, cfg, site, world)
	}
	if len(c.domains) == 0 {
		c.domains = site.Domains()
	}
	if len(c.domains) == 0 {
		return 0, cli.Errorf(cli.ExitUsage, "main.cf names no domain; name one:\n%s", usage)
	}
	return c.check(ctx, world, site)
}

// outside is the real world, as main.cf says how it is reached.
func (c *command) outside(cfg *config.Config) (*World, func(), error) {
	o, err := resolver.Configured(cfg)
	if err != nil {
		return nil, nil, err
	}
	networks, err := table.NewList("smtp_https_networks", cfg.List("smtp_https_networks"), table.ListOptions{Kind: table.Addresses})
	if err != nil {
		return nil, nil, err
	}
	o.DNSSEC = true // or nothing would be vouched for, and no TLSA record heeded
	dns := resolver.New(o)
	at := func(addr netip.Addr) (Asker, func()) {
		o := o
		o.Servers, o.CacheSize = []string{netip.AddrPortFrom(addr, 53).String()}, -1
		server := resolver.New(o)
		return server, server.Close
	}
	own, err := table.OwnAddresses(context.Background(), []string{"all"})
	if err != nil {
		dns.Close()
		return nil, nil, err
	}
	here := func(addr netip.Addr) bool { return slices.Contains(own, addr) }
	return &World{DNS: dns, At: at, Here: here, Dial: new(net.Dialer).DialContext, Now: time.Now(), HTTP: webclient.New(webclient.Options{Resolver: dns,
		Allowed: func(ctx context.Context, addr netip.Addr) (bool, error) { return networks.Match(ctx, addr.String()) }})}, dns.Close, nil
}

// A result is what JSON says of one domain.
type result struct {
	Domain   string    `json:"domain"`
	Host     string    `json:"host"`
	Level    Level     `json:"level"` // the worst of the findings
	Findings []Finding `json:"findings"`
}

// check checks the domains, and gives the exit status of the worst finding.
func (c *command) check(ctx context.Context, w *World, site *Site) (int, error) {
	var all []Finding
	for i, domain := range c.domains {
		list, err := Check(ctx, w, site, domain, c.wishes)
		if err != nil {
			return 0, err
		}
		if all = append(all, list...); c.json {
			err = json.NewEncoder(c.Stdout).Encode(result{domain, site.Host, worst(list), list})
		} else {
			if len(c.domains) > 1 {
				fmt.Fprintf(c.Stdout, "%s%s:\n", map[bool]string{true: "\n"}[i > 0], domain)
			}
			err = printFindings(c.Stdout, list, c.quiet)
		}
		if err != nil {
			return 0, cli.Errorf(cli.ExitIO, "%w", err)
		}
	}
	return status(all), nil
}

// records prints what is to be published.
func (c *command) records(ctx context.Context, site *Site) error {
	domain := c.domains[0]
	if c.choice.Reports == "" {
		c.choice.Reports = "postmaster@" + domain
	}
	list, err := Wanted(ctx, site, domain, c.choice)
	if err != nil {
		return cli.Errorf(cli.ExitConfig, "%w", err)
	}
	switch {
	case c.form:
		return writeForm(c.Stdout, list)
	case !c.json:
		return writeZone(c.Stdout, list, domain)
	}
	return json.NewEncoder(c.Stdout).Encode(list)
}
