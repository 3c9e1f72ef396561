// Package upgrade is "posthaste upgrade-configuration", and the part of "set-permissions"
// that changes settings: it brings a configuration directory to what the present version
// needs, and says each change.
//
//	posthaste upgrade-configuration [name=value ...]
//	posthaste set-permissions [name=value ...]
//
// A service that the mail system itself depends on, and that master.cf does not have, is
// appended to it as a new installation has it. Lines that are there stay as they are, also
// those of services that need no process here. In main.cf only what the arguments say is changed.
//
// # Security
//
// It writes main.cf and master.cf by way of postconf(1), with the rights of whoever calls it.
package upgrade

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"posthaste/internal/config"
)

// Tools are what the command is made of.
type Tools struct {
	Postconf func(args []string, stdout, stderr io.Writer) int // postconf(1)
	Master   string                                            // master.cf of a new installation
	Stdout   io.Writer
	Stderr   io.Writer
}

// installation are the parameters that arguments may set: those of Postfix's installer.
// Most have no effect, and are set for programs that ask postconf for them.
var installation = strings.Fields(`command_directory daemon_directory data_directory html_directory mail_owner mailq_path
	manpage_directory meta_directory newaliases_path openssl_path queue_directory readme_directory sample_directory
	sendmail_path setgid_group shlib_directory`)

// needed are the services that others wait for, each with the parameter that names it; ""
// where the name is fixed.
var needed = []struct{ service, parameter string }{
	{"pickup/unix", "pickup_service_name"},
	{"cleanup/unix", "cleanup_service_name"},
	{"qmgr/unix", "queue_service_name"},
	{"rewrite/unix", "rewrite_service_name"},
	{"bounce/unix", "bounce_service_name"},
	{"verify/unix", "address_verify_service_name"},
	{"sendlimit/unix", ""},
	{"suppress/unix", ""},
	{"comeback/unix", ""},
	{"relay/unix", ""},
	{"error/unix", ""},
	{"retry/unix", ""},
	{"discard/unix", ""},
	{"postlog/unix-dgram", "postlog_service_name"},
	{"proxymap/unix", "proxymap_service_name"},
	{"showq/unix", ""}, // programs know it by this name
}

// Run carries out upgrade-configuration in a configuration directory and returns the exit status.
func Run(dir string, args []string, t Tools) int {
	return t.run("upgrade-configuration", func() error {
		changed, err := t.set(dir, args)
		if err != nil {
			return err
		}
		added, err := t.addServices(dir)
		if err == nil && changed+added == 0 {
			fmt.Fprintf(t.Stdout, "%s: main.cf and master.cf have what the mail system needs\n", dir)
		}
		return err
	})
}

// Set makes the settings of the arguments, as set-permissions does before it gives files
// away. It returns the exit status.
func Set(dir string, args []string, t Tools) int {
	return t.run("set-permissions", func() error {
		_, err := t.set(dir, args)
		return err
	})
}

func (t Tools) run(name string, f func() error) int {
	if err := f(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fmt.Fprintf(t.Stderr, "posthaste: fatal: %s: %s\n", name, line)
		}
		return 1
	}
	return 0
}

// set writes those settings into main.cf that it does not have yet.
func (t Tools) set(dir string, args []string) (changed int, err error) {
	if len(args) == 0 {
		return 0, nil
	}
	cfg, err := config.Read(dir)
	if err != nil {
		return 0, err
	}
	var settings []string
	for _, a := range args {
		o, err := config.ParseOverride(a)
		if err != nil {
			return 0, fmt.Errorf("%s: expected name=value: %w", a, err)
		}
		if !slices.Contains(installation, o.Name) {
			return 0, fmt.Errorf("%s: it is set in main.cf or with \"postconf -e\"; here one of %s is", o.Name, strings.Join(installation, ", "))
		}
		if cfg.Raw(o.Name) != o.Value {
			settings = append(settings, o.Name+"="+o.Value)
		}
	}
	if len(settings) == 0 {
		return 0, nil
	}
	if err := t.edit(append([]string{"-c", dir, "-e"}, settings...)); err != nil {
		return 0, err
	}
	for _, s := range settings {
		fmt.Fprintf(t.Stdout, "Editing %s/main.cf, setting %s\n", dir, strings.Replace(s, "=", " = ", 1))
	}
	return len(settings), nil
}

func (t Tools) edit(args []string) error {
	var complaint bytes.Buffer
	if t.Postconf(args, io.Discard, &complaint) != 0 {
		return errors.New(strings.TrimSpace(complaint.String()))
	}
	return nil
}

// addServices appends the services that master.cf does not have.
func (t Tools) addServices(dir string) (added int, err error) {
	cfg, err := config.Load(dir)
	if err != nil {
		return 0, err
	}
	services, faulty, err := config.LoadMaster(dir, cfg)
	if err == nil && len(faulty) > 0 { // one of them may be what seems to be missing
		err = config.JoinLineErrors(faulty)
	}
	if err != nil {
		return 0, err
	}
	edits := []string{"-c", dir, "-Me"}
	var names []string
	for _, n := range needed {
		name, typ, _ := strings.Cut(n.service, "/")
		line, ok := stockLine(t.Master, name, typ)
		if !ok {
			return 0, fmt.Errorf("the master.cf of a new installation has no service %s", n.service)
		}
		if n.parameter != "" {
			line = strings.Replace(line, name, cfg.String(n.parameter), 1)
			name = cfg.String(n.parameter)
		}
		if !slices.ContainsFunc(services, func(s config.Service) bool { return s.Name == name && serves(s.Type, typ) }) {
			edits = append(edits, name+"/"+typ+"="+line)
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return 0, nil
	}
	if err := t.edit(edits); err != nil {
		return 0, err
	}
	for _, name := range names {
		fmt.Fprintf(t.Stdout, "Editing %s/master.cf, adding missing entry for %s service\n", dir, name)
	}
	return len(names), nil
}

// serves says whether a service of a type is found where one of another is looked for: an
// old master.cf has fifo for pickup and qmgr.
func serves(has, wanted string) bool { return has == wanted || wanted == "unix" && has == "fifo" }

// stockLine is the line of a service in a new installation's master.cf, on one line.
func stockLine(master, name, typ string) (string, bool) {
	for _, l := range config.LogicalLines(master) {
		if f := strings.Fields(l.Text); len(f) > 2 && f[0] == name && f[1] == typ {
			return strings.Join(f, " "), true
		}
	}
	return "", false
}
