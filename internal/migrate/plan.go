package migrate

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"posthaste/internal/config"
)

// A plan is what becomes of a configuration.
type plan struct {
	*options
	Master
	old          postfix
	main, master string          // the new files
	copies       map[string]bool // paths below from that settings name
	changed      []string        // what was changed
	decisions    []string        // what a person has to decide
}

func (p *plan) change(format string, args ...any) {
	p.changed = append(p.changed, fmt.Sprintf(format, args...))
}

func (p *plan) ask(format string, args ...any) {
	p.decisions = append(p.decisions, fmt.Sprintf(format, args...))
}

// leftOut are parameters that say where Postfix is and who it is.
var leftOut = map[string]string{
	"queue_directory":            "Posthaste has its own queue",
	"data_directory":             "Posthaste has its own",
	"command_directory":          "it is where Postfix's commands are",
	"daemon_directory":           "it is where Postfix's programs are",
	"sendmail_path":              "it is Postfix's program",
	"newaliases_path":            "it is Postfix's program",
	"mailq_path":                 "it is Postfix's program",
	"mail_owner":                 "services run as the user posthaste",
	"setgid_group":               "Posthaste's default is used",
	"config_directory":           "it is the directory of the file itself",
	"manpage_directory":          "it is about Postfix's installation",
	"html_directory":             "it is about Postfix's installation",
	"readme_directory":           "it is about Postfix's installation",
	"sample_directory":           "it is about Postfix's installation",
	"shlib_directory":            "it is about Postfix's installation",
	"meta_directory":             "it is about Postfix's installation",
	"mail_version":               "it is another program",
	"mail_release_date":          "it is another program",
	"import_environment":         "Posthaste's default has the names that it needs",
	"export_environment":         "Posthaste's default has the names that it needs",
	"postmulti_start_commands":   "there is no postmulti",
	"postmulti_stop_commands":    "there is no postmulti",
	"postmulti_control_commands": "there is no postmulti",
}

// setting is the new text of a line of main.cf.
func (p *plan) setting(l config.LogicalLine, raw string) string {
	name, value, err := config.SplitNameValue(l.Text)
	if err != nil || l.Orphan {
		return raw // the check of the result says what is wrong with it
	}
	if reason, ok := leftOut[name]; ok {
		p.change("main.cf:%d: %s = %s: left out: %s", l.Line, name, value, reason)
		return comment(raw)
	}
	if name == "multi_instance_directories" && value != "" {
		p.ask("main.cf:%d: each other instance (%s) is moved separately: posthaste migrate --from DIR --to DIR", l.Line, value)
		return comment(raw)
	}
	return p.paths("main.cf", l.Line, raw)
}

// service is the new text of a line of master.cf.
func (p *plan) service(l config.LogicalLine, raw string) string {
	if l.Orphan {
		return raw
	}
	words := strings.Fields(l.Text)
	if len(words) > 7 && !p.Knows(words[7]) {
		p.ask("master.cf:%d: service %s/%s: there is no program %s here, the line is left out%s", l.Line, words[0], words[1], words[7], instead[words[7]])
		return comment(raw)
	}
	for _, word := range words {
		if user, ok := strings.CutPrefix(word, "user="); ok {
			if name, _, _ := strings.Cut(user, ":"); name == p.old.owner {
				p.ask("master.cf:%d: user=%s: the program runs as Postfix's user, which goes when Postfix is removed", l.Line, user)
			}
		}
	}
	return p.paths("master.cf", l.Line, raw)
}

// instead is what does the work of programs that do not exist here.
var instead = map[string]string{
	"spawn": "; a policy server runs on its own (under systemd, for example), and is reached by its own socket",
	"qmqpd": "; have its clients send by SMTP",
}

// comment makes comments of lines.
func comment(raw string) string {
	var out strings.Builder
	for line := range strings.Lines(raw) {
		out.WriteString("#" + line)
	}
	return out.String()
}

// pathEnd is what cannot be in a path in a setting.
const pathEnd = `\s,{}:;"'<>|()`

// paths replaces paths below Postfix's configuration directory, and notes what
// has to be copied.
func (p *plan) paths(file string, line int, raw string) string {
	replaced := false
	own := regexp.MustCompile(regexp.QuoteMeta(p.from) + `(/[^` + pathEnd + `]+)?`)
	out := own.ReplaceAllStringFunc(raw, func(path string) string {
		p.copies[path] = p.copies[path] || path != p.from
		replaced = true
		return p.to + strings.TrimPrefix(path, p.from)
	})
	for _, m := range ofDirectory().FindAllStringSubmatch(raw, -1) {
		p.copies[p.from+m[1]] = true
	}
	if replaced {
		p.change("%s:%d: %s is now %s", file, line, p.from, p.to)
	}
	if strings.Contains(raw, p.old.queue+"/") {
		p.ask("%s:%d: names a file in Postfix's queue directory (%s), which services cannot reach as they reached it: move it",
			file, line, strings.Join(strings.Fields(raw), " "))
	}
	return out
}

var ofDirectory = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$(?:config_directory|\{config_directory\}|\(config_directory\))(/[^` + pathEnd + `]+)`)
})

// instance gives a configuration that does not go to the default place a queue
// of its own: two instances must not share one.
func (p *plan) instance() {
	if p.to == config.DefaultDir {
		return
	}
	base := filepath.Base(p.to)
	add := fmt.Sprintf("\n# Places of this instance.\nqueue_directory = /var/spool/%s\ndata_directory = /var/lib/%s\n", base, base)
	p.main = strings.TrimRight(p.main, "\n") + "\n" + add
	p.change("main.cf: queue_directory = /var/spool/%s, data_directory = /var/lib/%s: this is not the default instance", base, base)
}

// relativeSocket finds sockets that are named relative to the queue directory.
var relativeSocket = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[\s,{:])(?:unix|local):([^/\s,{}:$][^\s,{}:]*)`)
})

// decide finds what a person must decide.
func (p *plan) decide(cfg *config.Config) {
	checked, err := config.LoadString(p.main)
	if err != nil {
		return // it is reported with the result
	}
	services, faulty := config.LoadMasterString(p.master, checked)
	if len(faulty) > 0 {
		return // this is reported with the result, too
	}
	sockets := map[string]string{} // by path, where it is named
	look := func(place, name, value string) {
		if name == "smtpd_sasl_path" && value != "" && value[0] != '/' && value != "smtpd" && !strings.Contains(value, ":") {
			sockets[value] = place
		}
		for _, m := range relativeSocket().FindAllStringSubmatch(value, -1) {
			if !strings.HasPrefix(m[1], "passwd.by") && !strings.HasPrefix(m[1], "group.by") {
				sockets[m[1]] = place
			}
		}
		if name == "smtpd_sasl_auth_enable" && value == "yes" {
			p.cyrus(cfg, place, services)
		}
	}
	for _, name := range cfg.Names() {
		_, _, line := cfg.IsSet(name)
		if value, err := cfg.Value(name); err == nil && leftOut[name] == "" {
			look(fmt.Sprintf("main.cf:%d: %s", line, name), name, value)
		}
	}
	for i := range services {
		for _, o := range services[i].Overrides() {
			if value, err := cfg.Expand(o.Value); err == nil {
				look(fmt.Sprintf("master.cf:%d: -o %s", services[i].Line, o.Name), o.Name, value)
			}
		}
	}
	for i := range services { // a service's own socket is in the new directory
		for _, dir := range []string{"private/", "public/"} {
			delete(sockets, dir+services[i].Name)
		}
	}
	for _, path := range slices.Sorted(mapKeys(sockets)) {
		p.ask("%s: another program makes the socket %s in Postfix's queue directory; have it make %s, for the user posthaste",
			sockets[path], path, filepath.Join(p.spool(), path))
	}
	p.dovecotLines()
	p.ownerGroups()
}

// ownerGroups asks for the groups by which Postfix reaches what others have made.
func (p *plan) ownerGroups() {
	if p.groups == nil {
		return
	}
	have := p.groups("posthaste")
	for _, g := range p.groups(p.old.owner) {
		if !slices.Contains(have, g) {
			p.ask("the user %s is in the group %s: if it is for a filter's socket or a key, adduser posthaste %s", p.old.owner, g, g)
		}
	}
}

// spool is the new queue directory.
func (p *plan) spool() string {
	if p.to == config.DefaultDir {
		return "/var/spool/posthaste"
	}
	return filepath.Join("/var/spool", filepath.Base(p.to))
}

// cyrus asks who checks passwords where Cyrus SASL did: it is Postfix's default.
func (p *plan) cyrus(cfg *config.Config, place string, services []config.Service) {
	kind := cfg.Raw("smtpd_sasl_type")
	for i := range services {
		for _, o := range services[i].Overrides() {
			if o.Name == "smtpd_sasl_type" {
				kind = o.Value
			}
		}
	}
	if set, _, _ := cfg.IsSet("smtpd_sasl_type"); !set && kind == cfg.RawDefault("smtpd_sasl_type") || kind == "cyrus" {
		p.ask("%s: passwords are checked by Cyrus SASL: that goes on if sasl/smtpd.conf says pwcheck_method: saslauthd; else (auxprop) set smtpd_sasl_type to dovecot or table", place)
	}
}

// dovecotLines finds the lines of Dovecot's configuration that name Postfix's
// queue directory.
func (p *plan) dovecotLines() {
	_ = filepath.WalkDir(p.dovecot, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Ext(path) != ".conf" {
			return nil // what cannot be read is Dovecot's alone
		}
		eachLine(path, func(n int, text string) {
			if body := strings.TrimSpace(text); !strings.HasPrefix(body, "#") && strings.Contains(body, p.old.queue+"/") {
				p.ask("%s:%d: %s: Dovecot is to make this one in %s instead, with user = posthaste", path, n, strings.TrimSuffix(body, " {"), p.spool())
			}
		})
		return nil
	})
}

// eachLine reads a text file; what cannot be read has no lines.
func eachLine(path string, f func(n int, text string)) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	in := bufio.NewScanner(file)
	for n := 1; in.Scan(); n++ {
		f(n, in.Text())
	}
}
