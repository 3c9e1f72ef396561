// Package tryout makes a private mail system for whoever wants to try
// Posthaste: on the loopback interface, on a port of its own, with everything
// that it has below one directory. It is what "make run" starts.
//
// What is there already is kept: a second run has the same settings and the same mail. A
// port that is asked for is then put into master.cf.
//
// # Security
//
// Where the program of the console is there the console runs, too, with one user, whose password
// is made up and is in a file that only the user can read.
//
// It listens on 127.0.0.1 only and relays for clients on this machine only.
// An ordinary user runs all of it as himself. Root runs none of it: the directory is given to
// an ordinary user, whose processes all are.
package tryout

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"posthaste/internal/table/postmap"
)

// A System is a private mail system.
type System struct {
	Dir  string // where it lives
	Port int    // 0: what master.cf has, or 2525
	Self string // the program, for what the user is told to type
}

const defaultPort = 2525

const usage = "usage: posthaste try [-d dir] [-p port]"

// Parse reads the command's arguments. The defaults are ./run and 2525.
func Parse(args []string, self string) (*System, error) {
	s := &System{Dir: "run", Self: self}
	for i := 0; i < len(args); i++ {
		if i+1 == len(args) || args[i] != "-d" && args[i] != "-p" {
			return nil, errors.New(usage)
		}
		value := args[i+1]
		if args[i] == "-d" {
			s.Dir = value
		} else {
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > 65535 {
				return nil, fmt.Errorf("-p %s: expected a port number\n%s", value, usage)
			}
			s.Port = n
		}
		i++
	}
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return nil, err
	}
	s.Dir = dir
	return s, nil
}

// ConfigDir is where its main.cf is.
func (s *System) ConfigDir() string { return filepath.Join(s.Dir, "etc") }

const mainCF = `# A private mail system for trying things out; made by "posthaste try".
# It is yours to edit: it is not written again while it exists.
compatibility_level = 3.6
queue_directory = %[1]s/spool
data_directory = %[1]s/data
command_directory = %[2]s
maillog_file = %[1]s/mail.log
maillog_file_prefixes = %[1]s
myhostname = %[3]s
mydestination = localhost, localhost.localdomain, $myhostname
inet_interfaces = loopback-only
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
mail_spool_directory = %[1]s/mail/
alias_maps = hash:%[1]s/etc/aliases
alias_database = hash:%[1]s/etc/aliases
# Mail for elsewhere goes to the hosts that DNS names, or, if you say so, to
# one that takes it on:
#relayhost = [mail.example.org]:587
`

// Prepare writes what is missing: directories, main.cf, master.cf, aliases; and the
// port into master.cf, if one is asked for. It says what keeps the mail system from
// running there. It is for an ordinary user: see Yield.
func (s *System) Prepare(masterCF string) error {
	if strings.ContainsAny(s.Dir, " \t\n$") {
		return fmt.Errorf("%s: the name of the directory has characters that mean something in main.cf; choose another with -d", s.Dir)
	}
	for _, d := range []string{"", "etc", "spool", "mail"} {
		if err := os.MkdirAll(filepath.Join(s.Dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(s.Dir, "data"), 0o700); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	port := s.Port
	if port == 0 {
		port = defaultPort
	}
	me := Recipient()
	main := fmt.Sprintf(mainCF, s.Dir, filepath.Dir(self), hostname())
	if hasConsole(filepath.Dir(self)) {
		main += fmt.Sprintf(consoleCF, s.Dir, me, consolePort(port))
		masterCF = commentedConsole().ReplaceAllString(masterCF, "$1")
		if err := s.makeUser(); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"main.cf":   main,
		"aliases":   "# Aliases of the private mail system: name: address, address\npostmaster: " + me + "\nroot: " + me + "\n",
		"master.cf": withPort(masterCF, port)} {
		if err := writeNew(filepath.Join(s.ConfigDir(), name), content); err != nil {
			return err
		}
	}
	if s.Port != 0 {
		if err := s.movePort(); err != nil {
			return err
		}
	}
	var trouble strings.Builder
	args := []string{"-c", s.ConfigDir(), "hash:" + filepath.Join(s.ConfigDir(), "aliases")}
	if postmap.Postalias(args, strings.NewReader(""), io.Discard, &trouble) != 0 {
		return errors.New(strings.TrimSpace(trouble.String()))
	}
	return nil
}

// movePort has the SMTP server of an existing master.cf listen on Port: the one
// that this program wrote, of which there is one.
func (s *System) movePort() error {
	path := filepath.Join(s.ConfigDir(), "master.cf")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	old := ownService().FindAllSubmatchIndex(text, -1)
	if len(old) != 1 {
		return fmt.Errorf("%s: there are %d lines \"127.0.0.1:PORT inet ... smtpd\", and -p %d is for one: edit the file, and leave -p out", path, len(old), s.Port)
	}
	from, to := old[0][2], old[0][3]
	if string(text[from:to]) == strconv.Itoa(s.Port) {
		return nil
	}
	changed := string(text[:from]) + strconv.Itoa(s.Port) + string(text[to:])
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(changed), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// ownService finds the line in master.cf that withPort makes; [1] is the port.
var ownService = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^127\.0\.0\.1:(\d+)[ \t]+inet[ \t](?:[^\n]*[ \t])?smtpd(?:[ \t]|$)`)
})

// Recipient is the local user who has a mailbox: who is running it.
func Recipient() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "nobody"
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost.localdomain"
	}
	if !strings.Contains(name, ".") {
		name += ".localdomain"
	}
	return name
}

// withPort is the usual master.cf, with our port for SMTP.
func withPort(text string, port int) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "smtp" && f[1] == "inet" {
			line = strings.Replace(line, "smtp ", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))+" ", 1)
		}
		out.WriteString(line)
	}
	return out.String()
}

func writeNew(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, content)
	return errors.Join(err, f.Close())
}
