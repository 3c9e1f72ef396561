package advice

import (
	"errors"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"posthaste/internal/config"
	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// databases looks at the settings of tables in databases, which nobody reads before
// the first question is asked.
func (c *checker) databases() {
	seen := make(map[string]bool)
	for _, v := range c.values {
		for _, spec := range table.Proxied(v.text) {
			kind, name, _ := strings.Cut(spec, ":")
			if seen[spec] || kind == "unix" {
				continue
			}
			seen[spec] = true
			s, err := query.Load(name, c.cfg)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				continue // who opens the table says so
			case err != nil:
				c.stop(v, "table %s: %v", spec, err)
				continue
			}
			if lacks := missingSetting(kind, s); lacks != "" {
				c.stop(v, "table %s: %s has no %s: every lookup fails, and mail waits", spec, s.Where(), lacks)
			} else if lacks := defaulted(kind, s); lacks != "" {
				c.warn(v, "table %s: %s has no %s: the query goes to the server's default, which is probably not intended", spec, s.Where(), lacks)
			}
		}
	}
}

// missingSetting is what a database cannot be asked without, or "".
func missingSetting(kind string, s *query.Settings) string {
	old := s.Has("select_field") && s.Has("table") && s.Has("where_field")
	switch {
	case kind == "ldap":
	case !s.Has("query") && !old && !s.Has("select_function"):
		return "query"
	case kind == "sqlite" && !s.Has("dbpath"):
		return "dbpath"
	}
	return ""
}

// defaulted is what every table of the kind has, and the server has a default for, or "".
func defaulted(kind string, s *query.Settings) string {
	switch {
	case kind == "ldap" && !s.Has("search_base"):
		return "search_base"
	case (kind == "mysql" || kind == "pgsql") && !s.Has("dbname") && !s.Has("option_file") && !strings.Contains(s.Text("", "hosts"), "://"):
		return "dbname"
	}
	return ""
}

// signing looks for the keys of dkim_sign_maps.
func (c *checker) signing() {
	for _, v := range c.of("dkim_sign_maps") {
		for _, e := range c.entries(v) {
			if strings.Contains(e.value, "$") {
				continue
			}
			for _, word := range table.SplitList(e.value) {
				i := strings.Index(word, ":/")
				if i < 0 {
					c.stop(e.at(v), "%q: expected selector:/path/of/key or domain:selector:/path/of/key; mail of the domain is not taken", word)
				} else if _, err := c.system.Stat(word[i+1:]); err != nil {
					c.stop(e.at(v), "%v: mail that it should sign is not taken; make one with: posthaste dkim genkey", err)
				}
			}
		}
	}
}

// stock are pipes in the master.cf of distributions, for programs that few have.
var stock = []string{"maildrop", "uucp", "ifmail", "bsmtp", "scalemail-backend", "mailman", "cyrus", "old-cyrus"}

// commands looks at the users and the programs of pipe and spawn.
func (c *checker) commands() {
	for i := range c.services {
		s := &c.services[i]
		if s.Command != "pipe" && s.Command != "spawn" {
			continue
		}
		needed := c.used[s.Name]
		if s.Command == "spawn" {
			needed = slices.ContainsFunc(c.values, func(v value) bool {
				return slices.ContainsFunc(ourSocket().FindAllStringSubmatch(v.text, -1), func(m []string) bool { return filepath.Base(m[1]) == s.Name })
			})
		}
		if !needed && slices.Contains(stock, s.Name) {
			continue
		}
		at := value{file: s.File, line: s.Line, title: "service " + s.Name + "/" + s.Type}
		who, program := commandOf(s.Args)
		switch err := c.system.User(who); {
		case who == "":
			c.say(at, needed, "user=NAME is missing: the rights that the command has")
		case err != nil:
			c.say(at, needed, "user=%s: %v: mail for the command is deferred", who, err)
		}
		if why := c.notExecutable(program); why != "" {
			c.say(at, needed, "%s: mail for the command is deferred", why)
		}
	}
}

// commandOf is the user and the program of a service that runs a command.
func commandOf(args []string) (who, program string) {
	for i := 0; i < len(args); i++ {
		if args[i] == "-o" {
			i++
			continue
		}
		name, value, _ := strings.Cut(args[i], "=")
		switch name {
		case "user":
			who = value
		case "argv":
			if value == "" && i+1 < len(args) {
				value = args[i+1]
			}
			return who, value
		}
	}
	return who, ""
}

// notExecutable says why a program cannot be executed, or "".
func (c *checker) notExecutable(program string) string {
	if !filepath.IsAbs(program) || strings.Contains(program, "$") {
		return "" // in PATH, or known when it is executed
	}
	info, err := c.system.Stat(program)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "argv=" + program + ": there is no such program"
	case err != nil:
		return ""
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return "argv=" + program + ": it is not an executable program"
	}
	return ""
}

// ourSocket finds sockets in the queue's directory that services of master.cf listen on.
var ourSocket = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[\s,{=])(?:unix:)?((?:private|public)/[^\s,{}:]+)`)
})

// sockets looks for who listens on those that settings name.
func (c *checker) sockets() {
	queue := c.cfg.String("queue_directory")
	for _, v := range c.values {
		p, known := config.Lookup(v.name)
		if !known || !strings.Contains(v.text, "check_policy_service") && !strings.HasSuffix(p.Name, "_milters") && v.name != "smtpd_sasl_path" &&
			!strings.HasSuffix(v.name, "_transport") {
			continue
		}
		if v.name == "smtpd_sasl_path" && !c.cfg.Bool("smtpd_sasl_auth_enable") {
			continue
		}
		for _, m := range ourSocket().FindAllStringSubmatch(v.text, -1) {
			name := m[1][strings.IndexByte(m[1], '/')+1:]
			if slices.ContainsFunc(c.services, func(s config.Service) bool { return s.Type != "inet" && s.Name == name }) {
				continue
			}
			if _, err := c.system.Stat(filepath.Join(queue, m[1])); errors.Is(err, fs.ErrNotExist) {
				c.warn(v, "no process listens on %s, and master.cf has no service %s: mail that needs it is deferred until one does",
					filepath.Join(queue, m[1]), name)
			}
		}
	}
}
