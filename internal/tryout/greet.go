package tryout

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"

	"posthaste/internal/config"
)

// Greet says what runs, where mail lands and what to type. It is read from the
// configuration, which the user may have changed.
func (s *System) Greet(w io.Writer) error {
	cfg, err := config.Load(s.ConfigDir())
	if err != nil {
		return err
	}
	services, _, err := config.LoadMaster(s.ConfigDir(), cfg)
	if err != nil {
		return err
	}
	me := Recipient()
	listens := listening(cfg, services)
	fmt.Fprintf(w, "Posthaste is a mail server now.\n")
	for i, addr := range listens {
		label := "listens on"
		if i > 0 {
			label = ""
		}
		fmt.Fprintf(w, "  %-12s %s%s\n", label, addr, reach(addr))
	}
	fmt.Fprintf(w, `  runs as      %s
  mail lands   %s
  log          %s
  settings     %s
%[7]sTry, in another shell:
  printf 'Subject: hello\n\nIt works.\n' | %[5]s -c %[6]s sendmail -v %[1]s@localhost
`, me, mailbox(cfg, me), cfg.String("maillog_file"), filepath.Join(s.ConfigDir(), "main.cf"), s.Self, s.ConfigDir(), s.consoleHint(cfg, services))
	if len(listens) > 0 {
		fmt.Fprintf(w, "  swaks --server %s --to %s@localhost\n", listens[0], me)
	}
	_, err = fmt.Fprintf(w, "  %s -c %s mailq\nCtrl-C stops it.\n", s.Self, s.ConfigDir())
	return err
}

// listening are the addresses of the SMTP servers, the first of master.cf first.
func listening(cfg *config.Config, services []config.Service) (list []string) {
	for i := range services {
		name := services[i].Name
		if services[i].Type != "inet" || services[i].Command != "smtpd" && services[i].Command != "postscreen" {
			continue
		}
		host, port, err := net.SplitHostPort(name)
		if err != nil {
			host, port = "", name
		}
		if n, err := cfg.Port(port); err == nil {
			port = fmt.Sprint(n)
		}
		if host == "" {
			if host = cfg.String("inet_interfaces"); host == "loopback-only" {
				host = "127.0.0.1"
			}
			if strings.ContainsAny(host, " ,") || host == "all" {
				host = "0.0.0.0"
			}
		}
		list = append(list, net.JoinHostPort(host, port))
	}
	return list
}

// reach says who can connect to an address.
func reach(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return ", for this machine only"
	}
	return ", for other machines as well"
}

// mailbox is where mail for a local user lands.
func mailbox(cfg *config.Config, user string) string {
	switch {
	case cfg.String("mailbox_transport") != "" || cfg.Raw("mailbox_command") != "":
		return "where mailbox_transport or mailbox_command takes it"
	case cfg.String("home_mailbox") != "":
		return "in " + cfg.String("home_mailbox") + " below the home directory of " + user
	}
	box := cfg.String("mail_spool_directory")
	if strings.HasSuffix(box, "/") {
		return "in " + box + user + "/new"
	}
	return "in " + box + "/" + user
}
