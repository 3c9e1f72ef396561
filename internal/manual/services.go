package manual

import (
	"go/doc/comment"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"posthaste/internal/config"
)

// A servicePage is the page of a service, made of its package's comment.
type servicePage struct {
	name    string
	aliases []string
	dir     string // of the package
	what    string
	// about takes the place of what the comment says before its first
	// heading, where that is for readers of the program.
	about []string
	// drop are the beginnings of paragraphs that are for readers of the
	// program.
	drop []string
	// subsystems are those of package config whose parameters the page
	// lists, besides those that the comment names.
	subsystems []string
	families   bool // list the parameters that each transport has
	see        []string
}

func servicePages() []servicePage {
	return []servicePage{
		{name: "acme", dir: "internal/acme", what: "get and renew the server's certificate", see: []string{"posthaste.1", "master.cf.5", "smtpd.8"}},
		{name: "anvil", dir: "internal/anvil", what: "report client rates and connection counts", see: []string{"smtpd.8"}},
		{name: "bounce", aliases: []string{"defer", "trace"}, dir: "internal/bounce", what: "send delivery status notifications",
			drop: []string{"A Composer is"}, subsystems: []string{"bounce"}, see: []string{"cleanup.8", "qmgr.8"}},
		{name: "cleanup", dir: "cleanup", what: "complete, check and queue incoming messages",
			drop: []string{"The message core,"}, subsystems: []string{"cleanup", "spool", "milter"},
			see: []string{"pickup.8", "qmgr.8", "smtpd.8", "trivial-rewrite.8"}},
		{name: "console", dir: "internal/console", what: "pages, an API and the history of the queue, for operators", see: []string{"posthaste.1", "qshape.1", "qmgr.8"}},
		{name: "comeback", dir: "internal/comeback", what: "take bounces and complaints that come back", see: []string{"suppressd.8", "qmgr.8"}},
		{name: "discard", dir: "local/discard", what: "discard mail as if it were delivered", see: []string{"error.8"}},
		{name: "error", dir: "local/errordrop", what: "return or defer mail",
			about: []string{"error(8) is the program behind the transports error and retry. It delivers nothing: every recipient is returned (error) or deferred (retry). The next hop of the transport is the reason."},
			see:   []string{"discard.8", "trivial-rewrite.8"}},
		{name: "events", dir: "internal/events", what: "tell other programs what becomes of mail", see: []string{"cleanup.8", "posthaste.1", "qmgr.8"}},
		{name: "inject", dir: "internal/inject", what: "take mail by HTTP", see: []string{"cleanup.8", "pickup.8", "posthaste.1", "smtpd.8"}},
		{name: "local", dir: "local", what: "deliver to local users", subsystems: []string{"local"},
			see: []string{"newaliases.1", "postalias.1", "pipe.8", "virtual.8"}},
		{name: "master", dir: "master", what: "start and supervise the services",
			drop: []string{"Master reads nothing"}, subsystems: []string{"master", "log"}, see: []string{"posthaste.1", "master.cf.5"}},
		{name: "pickup", dir: "pickup", what: "collect locally submitted mail", see: []string{"postdrop.1", "sendmail.1", "cleanup.8"}},
		{name: "pipe", dir: "local/pipe", what: "deliver to a command", see: []string{"master.cf.5", "local.8"}},
		{name: "policyhost", dir: "internal/policyhost", what: "serve MTA-STS policies, and the settings of mail programs", see: []string{"posthaste.1", "master.cf.5", "acme.8"}},
		{name: "unsubscribe", dir: "internal/unsubscribe", what: "take recipients off lists, by a link", see: []string{"suppressd.8", "cleanup.8", "inject.8", "master.cf.5"}},
		{name: "spawn", dir: "local/spawn", what: "run a command for each client connection", see: []string{"master.cf.5", "smtpd.8"}},
		{name: "postlogd", dir: "internal/postlog", what: "write the log file",
			about: []string{
				"postlogd(8) writes the log file if maillog_file is set. The other services send whole lines to its socket, several in each datagram, and it appends all that have arrived in one write. If the disk is full it waits and tries again, and the services keep their lines meanwhile.",
			}, subsystems: []string{"log"}, see: []string{"posthaste.1", "postlog.1"}},
		{name: "postscreen", dir: "smtpd/postscreen", what: "test SMTP clients before their session", subsystems: []string{"postscreen"},
			about: []string{
				"postscreen(8) is smtpd(8) with tests before each session: whether the client waits for the greeting, whether it is in DNS lists or in postscreen_access_list, and whether its commands are those of a mail server.",
				"In Postfix it is a separate process that passes good clients on. Here the session continues where the tests end, so that a client that has passed need not reconnect. The result is remembered, and the client is not tested again until it expires.",
			},
			see: []string{"smtpd.8"}},
		{name: "proxymap", dir: "internal/table/proxymap", what: "query databases for the other services",
			see: []string{"postmap.1", "master.cf.5", "main.cf.5"}},
		{name: "qmgr", dir: "qmgr", what: "schedule deliveries", subsystems: []string{"qmgr"}, families: true,
			drop: []string{"One goroutine,"}, see: []string{"postqueue.1", "postsuper.1", "qshape.1", "cleanup.8", "trivial-rewrite.8"}},
		{name: "sendlimit", dir: "internal/sendlimit", what: "limit what accounts send", see: []string{"posthaste.1", "smtpd.8"}},
		{name: "suppressd", dir: "internal/suppress", what: "keep the suppression list, and make return paths", see: []string{"posthaste.1", "comeback.8", "smtpd.8"}},
		{name: "showq", dir: "internal/showq", what: "list the mail queue for other programs", see: []string{"postqueue.1", "qmgr.8"}},
		{name: "smtp", aliases: []string{"lmtp"}, dir: "smtp", what: "deliver over SMTP and LMTP", subsystems: []string{"smtp", "tls"},
			see: []string{"master.cf.5", "smtpd.8"}},
		{name: "smtpd", dir: "smtpd", what: "receive mail over SMTP", subsystems: []string{"smtpd", "anvil", "tls"},
			about: []string{"smtpd(8) is the SMTP server, for port 25 and for submission. It checks each command and streams accepted messages to cleanup(8). It replies 250 to a message only when cleanup(8) has it on stable storage."},
			see:   []string{"master.cf.5", "cleanup.8", "smtp.8", "verify.8"}},
		{name: "trivial-rewrite", dir: "trivialrewrite", what: "rewrite and resolve addresses", subsystems: []string{"trivial-rewrite"},
			drop: []string{"Rewriter.Rewrite"}, see: []string{"postmap.1", "cleanup.8", "qmgr.8"}},
		{name: "verify", dir: "internal/verify", what: "verify addresses by probes", subsystems: []string{"verify"}, see: []string{"smtpd.8"}},
		{name: "virtual", dir: "local/virtual", what: "deliver to virtual mailboxes", subsystems: []string{"virtual"}, see: []string{"postmap.1", "local.8"}},
	}
}

// nameMark at the beginning of a paragraph stands for the page's name.
const nameMark = "\x00"

var (
	// ofItself is how a comment says which page of Postfix it stands for.
	ofItself    = regexp.MustCompile(` ?It is (Postfix's [a-z-]+\(8\)\.|the program behind .*?\.( |$))`)
	packageWord = regexp.MustCompile(`^Package [a-z]+ `)
	// asides are for readers of the program: "(package rights)", ", see content.go".
	asides = regexp.MustCompile(` \(packages? [a-z ]+\)|: see [a-z]+\.go|, see [a-z]+\.go`)
	// helpers are packages of the program, by what they are to a user.
	helpers = strings.NewReplacer(
		"as package command describes", "as for mailbox_command of local(8)",
		"what package submit keeps", "what is on its way to cleanup",
		"those of package maillog", "those of the log",
		" (package sched does)", "",
		" (proto.Settle)", "",
		" (proto.Inventory)", "",
	)
)

// edit makes a paragraph of a comment one of a manual page.
func (s *servicePage) edit(text string) string {
	text = strings.ReplaceAll(text, "\n", " ")
	for _, d := range s.drop {
		if strings.HasPrefix(text, d) {
			return ""
		}
	}
	text = helpers.Replace(asides.ReplaceAllString(ofItself.ReplaceAllString(text, ""), ""))
	return packageWord.ReplaceAllString(text, nameMark+" ")
}

// standard are the chapters of comments that have a place of their own in a page.
var standard = []string{"Security", "Standards", "Parameters", "Diagnostics", "Bugs"}

// page writes the page.
func (s *servicePage) page(root string) ([]byte, error) {
	doc, err := packageComment(filepath.Join(root, filepath.FromSlash(s.dir)))
	if err != nil {
		return nil, err
	}
	p := newPage(s.name, 8, s.what, s.aliases...)
	p.section("Synopsis")
	p.line(".Nm")
	p.line(".Op Fl o Ar name=value")
	p.line(".Op Ar attributes ...")
	p.section("Description")
	all := chapters(doc)
	if len(s.about) > 0 {
		p.paragraphs(s.about...)
	}
	if len(s.about) == 0 || s.name == "error" {
		rest := all[0].blocks
		if len(s.about) > 0 {
			rest = rest[1:]
			p.line(".Pp")
		}
		p.blocks(rest, s.edit)
	}
	p.line(".Pp")
	p.line(".Nm")
	p.prose("is started by master(8) as master.cf(5) says, and is not meant to be called by hand.")
	for _, c := range all[1:] {
		if !slices.Contains(standard, c.title) {
			p.subsection(c.title)
			p.blocks(c.blocks, s.edit)
		}
	}
	s.parameters(p, all)
	s.chapter(p, all, "Diagnostics", "Diagnostics")
	p.seeAlso(slices.Concat(s.see, []string{"main.cf.5"}, s.master())...)
	s.chapter(p, all, "Standards", "Standards")
	s.chapter(p, all, "Bugs", "Bugs")
	s.chapter(p, all, "Security", "Security considerations")
	return p.Bytes(), nil
}

// master is the page of master, for the pages of others.
func (s *servicePage) master() []string {
	if s.name == "master" {
		return nil
	}
	return []string{"master.8"}
}

func (s *servicePage) chapter(p *roff, all []chapter, from, title string) {
	for _, c := range all[1:] {
		if c.title == from {
			p.section(title)
			p.blocks(c.blocks, s.edit)
		}
	}
}

// stale returns those of drop that no paragraph of the comment begins with.
func (s *servicePage) stale(doc *comment.Doc) (list []string) {
	for _, d := range s.drop {
		if !slices.ContainsFunc(doc.Content, func(b comment.Block) bool {
			p, ok := b.(*comment.Paragraph)
			return ok && strings.HasPrefix(strings.ReplaceAll(plain(p.Text), "\n", " "), d)
		}) {
			list = append(list, d)
		}
	}
	return list
}

// parameters lists the parameters that the comment names and those of the
// service's subsystems, as far as something reads them.
func (s *servicePage) parameters(p *roff, all []chapter) {
	names := make(map[string]bool)
	for _, c := range all {
		if c.title != "Parameters" {
			continue
		}
		for _, b := range c.blocks {
			if t, ok := b.(*comment.Paragraph); ok {
				for _, w := range strings.FieldsFunc(plain(t.Text), func(r rune) bool { return strings.ContainsRune(" \n,.;:()", r) }) {
					if _, known := config.Lookup(w); known {
						names[w] = true
					}
				}
			}
		}
	}
	for _, q := range config.All() {
		if slices.Contains(s.subsystems, q.Subsystem) && config.NoEffect(q.Name) == "" && !isMember(&q) {
			names[q.Name] = true
		}
	}
	if writeNamed(p, slices.Collect(maps.Keys(names))) && s.families {
		p.line(".Pp")
		p.prose("Each transport can have its own: TRANSPORT is its name in master.cf, and the default is in parentheses.")
		writeFamilies(p)
	}
}

// writeNamed writes the section of the parameters of these names, as far as
// something reads them. It returns false where there are none.
func writeNamed(p *roff, names []string) bool {
	var list []config.Param
	for _, name := range names {
		if q, ok := config.Lookup(name); ok && config.Supported(name) {
			list = append(list, q)
		}
	}
	if len(list) == 0 {
		return false
	}
	p.section("Configuration parameters")
	p.prose("Defaults are in parentheses. See main.cf(5) for what values look like.")
	writeParameters(p, list)
	return true
}
