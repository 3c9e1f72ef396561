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
		{name: "anvil", dir: "internal/anvil", what: "tell other programs how much each client does", see: []string{"smtpd.8"}},
		{name: "bounce", aliases: []string{"defer", "trace"}, dir: "internal/bounce", what: "tell people what became of their mail",
			drop: []string{"A Composer is"}, subsystems: []string{"bounce"}, see: []string{"cleanup.8", "qmgr.8"}},
		{name: "cleanup", dir: "cleanup", what: "complete, check and store each message",
			drop: []string{"The message core,"}, subsystems: []string{"cleanup", "spool", "milter"},
			see: []string{"pickup.8", "qmgr.8", "smtpd.8", "trivial-rewrite.8"}},
		{name: "discard", dir: "local/discard", what: "deliver nowhere, and say it was sent", see: []string{"error.8"}},
		{name: "error", dir: "local/errordrop", what: "return mail, or keep it in the queue",
			about: []string{"error(8) is the program behind the transports error and retry: it delivers nothing. Every recipient is returned (error) or kept in the queue (retry), and the reason is what stands where other transports have their next hop."},
			see:   []string{"discard.8", "trivial-rewrite.8"}},
		{name: "local", dir: "local", what: "deliver to the users of this system", subsystems: []string{"local"},
			see: []string{"newaliases.1", "postalias.1", "pipe.8", "virtual.8"}},
		{name: "master", dir: "master", what: "start and watch over the services",
			drop: []string{"Master reads nothing"}, subsystems: []string{"master", "log"}, see: []string{"posthaste.1", "master.cf.5"}},
		{name: "pickup", dir: "pickup", what: "take in mail that local programs sent", see: []string{"postdrop.1", "sendmail.1", "cleanup.8"}},
		{name: "pipe", dir: "local/pipe", what: "deliver to a command", see: []string{"master.cf.5", "local.8"}},
		{name: "spawn", dir: "local/spawn", what: "run a command for each client", see: []string{"master.cf.5", "smtpd.8"}},
		{name: "postlogd", dir: "internal/postlog", what: "write the log file",
			about: []string{
				"postlogd(8) writes the log file when main.cf has a maillog_file. The other services send whole lines to its socket, several in a datagram. It appends what has arrived in one write. When the disk is full it waits and tries again, while the lines wait where they come from.",
			}, subsystems: []string{"log"}, see: []string{"posthaste.1", "postlog.1"}},
		{name: "postscreen", dir: "smtpd/postscreen", what: "test clients before they may send", subsystems: []string{"postscreen"},
			about: []string{
				"postscreen(8) is smtpd(8) with tests in front of each session: whether the client waits for the greeting, what DNS lists and postscreen_access_list say of it, and whether its commands are those of a mail server.",
				"With Postfix it is a process that hands good clients over. Here the session goes on where the tests end: a client that has passed does not have to come back. It is remembered, and is not tested again until its tests have expired.",
			},
			see: []string{"smtpd.8"}},
		{name: "proxymap", dir: "internal/table/proxymap", what: "ask databases for the other services",
			see: []string{"postmap.1", "master.cf.5", "main.cf.5"}},
		{name: "qmgr", dir: "qmgr", what: "decide when mail is delivered", subsystems: []string{"qmgr"}, families: true,
			drop: []string{"One goroutine,"}, see: []string{"postqueue.1", "postsuper.1", "qshape.1", "cleanup.8", "trivial-rewrite.8"}},
		{name: "showq", dir: "internal/showq", what: "list the mail queue for other programs", see: []string{"postqueue.1", "qmgr.8"}},
		{name: "smtp", aliases: []string{"lmtp"}, dir: "smtp", what: "deliver over SMTP and LMTP", subsystems: []string{"smtp", "tls"},
			see: []string{"master.cf.5", "smtpd.8"}},
		{name: "smtpd", dir: "smtpd", what: "take in mail over SMTP", subsystems: []string{"smtpd", "anvil", "tls"},
			about: []string{"smtpd(8) is the SMTP server, for port 25 and for submission. It judges each command and streams the messages that it accepts to cleanup(8); a 250 reply to a message is given only when that has it on stable storage."},
			see:   []string{"master.cf.5", "cleanup.8", "smtp.8", "verify.8"}},
		{name: "trivial-rewrite", dir: "trivialrewrite", what: "rewrite addresses, and find where they lead", subsystems: []string{"trivial-rewrite"},
			drop: []string{"Rewriter.Rewrite"}, see: []string{"postmap.1", "cleanup.8", "qmgr.8"}},
		{name: "verify", dir: "internal/verify", what: "find out whether an address can be delivered to", subsystems: []string{"verify"}, see: []string{"smtpd.8"}},
		{name: "virtual", dir: "local/virtual", what: "deliver to mailboxes that tables name", subsystems: []string{"virtual"}, see: []string{"postmap.1", "local.8"}},
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
