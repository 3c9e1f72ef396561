package domain

import (
	"bufio"
	"context"
	"crypto"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/table"
	"posthaste/internal/tabletext"
)

// classWords are the classes as --class names them.
var classWords = map[string]Class{"local": Local, "virtual": Mailbox, "relay": Relay, "alias": Alias, "none": Foreign}

// orders are what domain add, and rotate, are told.
type orders struct {
	class   string // of classWords; empty: the one that the domain is in, or that is answered
	dry     bool
	ed25519 bool
	new     bool     // rotate: make new keys now
	logins  []string // may send as any address of the domain
}

// An adder adds one domain.
type adder struct {
	*command
	plan
	site    *Site
	vault   *vault
	about   string // the domain
	becomes Class
}

// Tables that are made where there are none, in the configuration directory.
const (
	signTable  = "dkim_keys"
	loginTable = "sender_login"
)

// add makes a domain's settings, keys and entries, and prints the records to publish.
func (c *command) add(ctx context.Context, cfg *config.Config, site *Site) error {
	a, err := c.planAdd(ctx, cfg, site)
	if err != nil {
		return err
	}
	defer a.vault.Close()
	return a.show(ctx)
}

// planAdd finds out what is missing. Nothing is changed yet, but that the directory of the keys is
// there. Close the vault.
func (c *command) planAdd(ctx context.Context, cfg *config.Config, site *Site) (*adder, error) {
	a := &adder{command: c, plan: plan{cfg: cfg}, site: site, about: c.domains[0]}
	var err error
	if a.becomes, err = a.class(ctx); err != nil {
		return nil, err
	}
	var made bool
	if a.vault, made, err = openVault(cfg, c.orders.dry); err != nil {
		return nil, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	if made || c.orders.dry && a.vault.root == nil {
		a.plan.add(func() error { return nil }, "%s: a new directory", a.vault.dir)
	}
	for _, part := range []func(context.Context) error{a.keys, a.logins} {
		if err := part(ctx); err != nil {
			return nil, cli.Errorf(cli.ExitConfig, "%w", errors.Join(err, a.vault.Close()))
		}
	}
	a.advise(a.becomes)
	a.finish()
	return a, nil
}

// class finds out what is to become of the domain's mail, and refuses what contradicts main.cf.
func (a *adder) class(ctx context.Context) (Class, error) {
	in, err := a.site.Classes(ctx, a.about)
	if err != nil {
		return Foreign, cli.Errorf(cli.ExitConfig, "%w", err)
	}
	if len(in) > 1 {
		return Foreign, cli.Errorf(cli.ExitConfig, "%s is in %s and in %s: a domain has one class; remove it from one of them first", a.about, in[0], in[1])
	}
	word := a.orders.class
	if word == "" && len(in) == 1 {
		return in[0], nil
	}
	if word == "" {
		if word, err = a.askClass(); err != nil {
			return Foreign, err
		}
	}
	class := classWords[word]
	switch {
	case len(in) == 1 && in[0] != class:
		return class, cli.Errorf(cli.ExitConfig, "--class %s: %s is in %s already; remove it there first, or leave --class out", word, a.about, in[0])
	case len(in) == 0 && class != Foreign:
		a.extend(string(class), a.about)
	}
	return class, nil
}

// askClass asks for the class, where somebody can answer.
func (a *adder) askClass() (string, error) {
	const list = "local, virtual, relay, alias or none"
	if !a.terminal {
		return "", cli.Errorf(cli.ExitUsage, "main.cf does not say what becomes of mail for %s: add --class with %s", a.about, list)
	}
	fmt.Fprintf(a.Stderr, `What becomes of mail for %s?
  local    it is for users of this machine (mydestination)
  virtual  it is for mailboxes of virtual_mailbox_maps (virtual_mailbox_domains)
  relay    it goes on to another host (relay_domains)
  alias    it goes to other addresses (virtual_alias_domains)
  none     it does not come here; mail of the domain is only sent
`, a.about)
	answers := bufio.NewReader(io.LimitReader(a.Stdin, 4<<10))
	for {
		fmt.Fprint(a.Stderr, "class: ")
		line, err := answers.ReadString('\n')
		word := strings.ToLower(strings.TrimSpace(line))
		if _, ok := classWords[word]; ok {
			return word, nil
		}
		if err != nil {
			return "", cli.Errorf(cli.ExitUsage, "no class was given: nothing is changed")
		}
		fmt.Fprintf(a.Stderr, "expected %s\n", list)
	}
}

// keys plans the keys that are missing, and a table for them. They are pending: an entry makes
// mail be signed, and is made when the record is published (posthaste domain rotate).
func (a *adder) keys(ctx context.Context) error {
	entries, err := a.site.Keys(ctx, a.about)
	if err != nil {
		return err
	}
	r, err := a.vault.ring(a.about)
	if err != nil {
		return err
	}
	have, err := a.kinds(entries, r)
	if err != nil {
		return err
	}
	before := len(r.keys)
	if len(have) == 0 {
		err = newKey(&a.plan, a.vault, r, kindRSA, a.Now)
	}
	if a.orders.ed25519 && !slices.Contains(have, kindEd25519) && err == nil {
		err = newKey(&a.plan, a.vault, r, kindEd25519, a.Now)
	}
	if err != nil {
		return err
	}
	if len(r.keys) > before {
		a.writeRing(a.vault, r, r.keys[before:])
	}
	t, ok := tabletext.Editable(a.cfg.List("dkim_sign_maps"))
	switch {
	case !ok && len(entries) == 0:
		t = tabletext.File{Path: a.cfg.Dir() + "/" + signTable, Spec: "texthash:" + a.cfg.Dir() + "/" + signTable}
		if !t.Exists() {
			a.plan.add(func() error {
				return t.Create("DKIM keys by domain: domain selector:file ... (dkim_sign_maps)", 0o644, -1)
			}, "%s: a new table", t.Path)
		}
		a.extend("dkim_sign_maps", t.Spec)
	case ok && t.Stale():
		a.build(t)
	}
	for _, k := range r.in(Pending) {
		a.note("when the record of %s is published, \"posthaste domain rotate %s\" has mail signed with it", k.Selector, a.about)
	}
	return nil
}

// kinds are the kinds of the keys that the domain has: those that sign, and those that are to.
func (a *adder) kinds(entries []dkimkey.Entry, r *ring) (have []string, err error) {
	for _, e := range entries {
		key, err := dkimkey.Read(e.File)
		if err != nil {
			return nil, err
		}
		have = append(have, kindOf(key))
	}
	for _, k := range r.keys {
		if k.State == Pending || k.State == Active {
			have = append(have, k.Kind)
		}
	}
	return have, nil
}

// kindOf is the kind of a key.
func kindOf(key crypto.Signer) string {
	if _, ok := key.Public().(ed25519.PublicKey); ok {
		return kindEd25519
	}
	return kindRSA
}

// keyBits is the size of new RSA keys: what all verifiers take (RFC 8301 section 3.2).
const keyBits = 2048

// writeRing plans the file of a ring, in which some keys are new.
func (p *plan) writeRing(v *vault, r *ring, changed []RingKey) {
	words := make([]string, len(changed))
	for i, k := range changed {
		words[i] = k.Selector + " is " + string(k.State)
	}
	text := r.String()
	p.add(func() error { return v.write(ringFile(r.domain), []byte(text)) }, "%s: %s", v.path(ringFile(r.domain)), strings.Join(words, ", "))
}

// logins plans who may send as which address: the logins that are ordered, as any address of the
// domain; and the accounts that are called by an address of the domain, as that address.
func (a *adder) logins(context.Context) error {
	accounts, err := a.accounts()
	if err != nil || len(a.orders.logins)+len(accounts) == 0 {
		return err
	}
	const name = "smtpd_sender_login_maps"
	t, ok := tabletext.Editable(a.cfg.List(name))
	if !ok {
		t = tabletext.File{Path: a.cfg.Dir() + "/" + loginTable, Spec: "texthash:" + a.cfg.Dir() + "/" + loginTable}
		if !t.Exists() {
			a.plan.add(func() error { return t.Create("Who may send as whom: address login, ... ("+name+")", 0o644, -1) }, "%s: a new table", t.Path)
		}
		a.extend(name, t.Spec)
	}
	if len(a.orders.logins) > 0 {
		err = a.owners(t, "@"+a.about, a.orders.logins)
	}
	for _, account := range accounts {
		err = errors.Join(err, a.owners(t, account, []string{account}))
	}
	if !a.checksLogins() {
		a.note("nothing asks smtpd_sender_login_maps: add reject_sender_login_mismatch to smtpd_sender_restrictions")
	}
	return err
}

// owners plans an entry of the login table, to which logins are added.
func (a *adder) owners(t tabletext.File, key string, logins []string) error {
	old, _, err := t.Get(key)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	list := table.SplitList(old)
	for _, login := range logins {
		if !slices.ContainsFunc(list, func(l string) bool { return strings.EqualFold(l, login) }) {
			list = append(list, login)
		}
	}
	value := strings.Join(list, ", ")
	if err == nil {
		return a.entry(t, key, value)
	}
	a.plan.add(func() error { return t.Set(key, value) }, "%s: %s\t%s", t.Path, key, value) // it is made in this run
	return nil
}

// accounts are the names of those in the table of accounts that are addresses of the domain, if
// people log in with such accounts (smtpd_sasl_type).
func (a *adder) accounts() (names []string, err error) {
	master, err := os.ReadFile(a.cfg.Dir() + "/master.cf")
	if err != nil {
		return nil, err
	}
	if a.cfg.String("smtpd_sasl_type") != "accounts" && !strings.Contains(string(master), "smtpd_sasl_type=accounts") {
		return nil, nil
	}
	t, ok := tabletext.Editable(a.cfg.List("account_maps"))
	if !ok {
		return nil, nil
	}
	entries, err := t.Entries()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if at := strings.LastIndexByte(e.Key, '@'); at > 0 && strings.EqualFold(e.Key[at+1:], a.about) && !slices.Contains(names, e.Key) {
			names = append(names, e.Key)
		}
	}
	return names, err
}

// checksLogins says whether a restriction asks smtpd_sender_login_maps.
func (a *adder) checksLogins() bool {
	master, err := os.ReadFile(a.cfg.Dir() + "/master.cf")
	if err == nil && strings.Contains(string(master), "sender_login_mismatch") {
		return true
	}
	for _, stage := range []string{"client", "helo", "sender", "relay", "recipient", "data", "end_of_data"} {
		if strings.Contains(a.cfg.Raw("smtpd_"+stage+"_restrictions"), "sender_login_mismatch") {
			return true
		}
	}
	return false
}

// advise says what else the domain needs.
func (a *adder) advise(class Class) {
	switch {
	case class == Mailbox && len(a.cfg.List("virtual_mailbox_maps")) == 0:
		a.note("name the mailboxes in virtual_mailbox_maps: without it mail for any address of %s is accepted", a.about)
	case class == Relay && len(a.cfg.List("relay_recipient_maps")) == 0:
		a.note("name the addresses in relay_recipient_maps: without it mail for any address of %s is accepted, and the other host refuses some of it", a.about)
	case class == Alias && len(a.cfg.List("virtual_alias_maps")) == 0:
		a.note("say in virtual_alias_maps where the addresses of %s lead", a.about)
	}
	if class != Foreign && strings.EqualFold(a.cfg.String("inet_interfaces"), "loopback-only") {
		a.note("inet_interfaces = loopback-only: mail from other hosts cannot come in")
	}
	if class != Foreign && a.site.hosted != nil {
		a.adviseNames(a.site.hosted.names(a.about))
	}
}

// adviseNames says that the certificate of the policyhost service needs names. They are not ordered here: an
// authority refuses a certificate for names that do not lead to this host yet.
func (a *adder) adviseNames(names []string) {
	has := a.cfg.List("tls_acme_domains")
	names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(has, n) })
	switch {
	case len(names) == 0:
	case a.cfg.Bool("tls_acme"):
		a.note("when %s lead to this host, add them to tls_acme_domains: the certificate must have them", strings.Join(names, ", "))
	default:
		a.note("the certificate for policyhost must have the names %s", strings.Join(names, ", "))
	}
}

// An outcome is what JSON says of domain add.
type outcome struct {
	Domain  string   `json:"domain"`
	Changed []string `json:"changed"` // file: what
	Notes   []string `json:"notes"`
	Records []Record `json:"records"`
}

// show carries the plan out, and prints what was changed and what is to be published.
func (a *adder) show(ctx context.Context) error {
	out := outcome{Domain: a.about, Changed: []string{}, Notes: []string{}}
	if a.orders.dry && !a.json && len(a.steps) > 0 {
		fmt.Fprint(a.Stdout, "would change:\n")
	}
	err := a.carryOut(a.orders.dry, func(what string) error {
		out.Changed = append(out.Changed, what)
		if a.json {
			return nil
		}
		_, err := fmt.Fprintf(a.Stdout, "%s\n", what)
		return err
	})
	if err != nil {
		return cli.Errorf(cli.ExitUnavailable, "%w; repeat the command to do what is left", err)
	}
	if a.orders.dry {
		a.note("records of new keys are printed when the keys are made")
	}
	out.Notes = append(out.Notes, a.notes...)
	if a.choice.Reports == "" {
		a.choice.Reports = "postmaster@" + a.about
	}
	if out.Records, err = wantedOf(ctx, a.site, a.about, a.becomes, a.choice); err != nil {
		return cli.Errorf(cli.ExitConfig, "%w", err)
	}
	if a.json {
		return json.NewEncoder(a.Stdout).Encode(out)
	}
	if len(a.steps) == 0 {
		fmt.Fprintf(a.Stdout, "%s is as it should be: nothing is changed\n", a.about)
	}
	for _, note := range out.Notes {
		fmt.Fprintf(a.Stdout, "note: %s\n", note)
	}
	fmt.Fprint(a.Stdout, "\nPublish these records. As a form of a DNS provider asks for them:\n\n")
	if err := writeForm(a.Stdout, out.Records); err != nil {
		return err
	}
	fmt.Fprint(a.Stdout, "\nThe same as a fragment of a zone file:\n\n")
	return writeZone(a.Stdout, out.Records, a.about)
}
