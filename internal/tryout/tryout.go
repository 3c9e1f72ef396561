// Package tryout makes a private mail system for whoever wants to try
// Posthaste: on the loopback interface, on a port of its own, with everything
// that it has below one directory. It is what "make run" starts.
//
// # Security
//
// It listens on 127.0.0.1 only and relays for clients on this machine only.
// An ordinary user runs all of it as himself. Run by root it changes to
// unprivileged users as an installed system does.
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
	"strconv"
	"strings"

	"posthaste/internal/table/postmap"
)

// A System is a private mail system.
type System struct {
	Dir  string // where it lives
	Port int
	Self string // the program, for what the user is told to type
}

const usage = "usage: posthaste try [-d dir] [-p port]"

// Parse reads the command's arguments. The defaults are ./run and 2525.
func Parse(args []string, self string) (*System, error) {
	s := &System{Dir: "run", Port: 2525, Self: self}
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

// asRoot is added when root tries: services change to these.
const asRoot = `mail_owner = %s
setgid_group = %s
`

// Prepare writes what is missing: directories, main.cf, master.cf, aliases.
// It says what keeps the mail system from running there.
func (s *System) Prepare(masterCF string) error {
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
	text := fmt.Sprintf(mainCF, s.Dir, filepath.Dir(self), hostname())
	if os.Geteuid() == 0 {
		owner, group, err := s.prepareRoot()
		if err != nil {
			return err
		}
		text += fmt.Sprintf(asRoot, owner, group)
	} else if strings.ContainsAny(s.Dir, " \t\n$") {
		return fmt.Errorf("%s: the name of the directory has characters that mean something in main.cf; choose another with -d", s.Dir)
	}
	aliases := "# Aliases of the private mail system: name: address, address\npostmaster: " + Recipient() + "\n"
	if os.Geteuid() == 0 {
		aliases += "root: " + Recipient() + "\n"
	}
	for name, content := range map[string]string{"main.cf": text, "aliases": aliases,
		"master.cf": s.master(masterCF)} {
		if err := writeNew(filepath.Join(s.ConfigDir(), name), content); err != nil {
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

// prepareRoot finds users to change to, and sees to it that they get at what
// they need.
func (s *System) prepareRoot() (owner, group string, err error) {
	for dir := s.Dir; ; dir = filepath.Dir(dir) {
		fi, err := os.Stat(dir)
		if err != nil {
			return "", "", err
		}
		if fi.Mode()&0o001 == 0 {
			return "", "", fmt.Errorf("%s: only its owner may enter it, but as root the mail system runs as other users; "+
				"choose a directory for it with -d, such as /var/tmp/posthaste", dir)
		}
		if dir == "/" {
			break
		}
	}
	owner, uid, err := firstUser("posthaste", "postfix", "mail")
	if err != nil {
		return "", "", err
	}
	for _, g := range []string{"postdrop", "nogroup", "nobody"} {
		if _, err := user.LookupGroup(g); err == nil {
			group = g
			break
		}
	}
	if group == "" {
		return "", "", errors.New("as root the mail system needs a group for its set-gid program: postdrop, nogroup or nobody")
	}
	_, rcpt, err := firstUser(Recipient())
	if err != nil {
		return "", "", err
	}
	return owner, group, errors.Join(os.Chown(filepath.Join(s.Dir, "data"), uid, -1), os.Chown(filepath.Join(s.Dir, "mail"), rcpt, -1))
}

func firstUser(names ...string) (name string, uid int, err error) {
	for _, n := range names {
		if u, err := user.Lookup(n); err == nil {
			uid, err := strconv.Atoi(u.Uid)
			return n, uid, err
		}
	}
	return "", 0, fmt.Errorf("none of the users %s exists", strings.Join(names, ", "))
}

// Recipient is the local user for whom mail can be sent: who is running it,
// or, for root, who gets no mailbox of its own, nobody.
func Recipient() string {
	if u, err := user.Current(); err == nil && os.Geteuid() != 0 {
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

// master is the usual master.cf, with our port for SMTP.
func (s *System) master(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "smtp" && f[1] == "inet" {
			line = strings.Replace(line, "smtp ", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))+" ", 1)
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

// Greet says what runs, where mail lands and what to type.
func (s *System) Greet(w io.Writer) {
	fmt.Fprintf(w, `Posthaste is a mail server now.
  listens on   127.0.0.1:%[1]d, for this machine only
  mail lands   in %[2]s/mail/%[3]s/new
  log          %[2]s/mail.log
  settings     %[2]s/etc/main.cf
Try, in another shell:
  printf 'Subject: hello\n\nIt works.\n' | %[4]s -c %[2]s/etc sendmail -v %[3]s@localhost
  swaks --server 127.0.0.1:%[1]d --to %[3]s@localhost
  %[4]s -c %[2]s/etc mailq
Ctrl-C stops it.
`, s.Port, s.Dir, Recipient(), s.Self)
}
