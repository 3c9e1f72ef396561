package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// realName is what addresses of aliases begin with.
const realName = "real"

// queried is mail whose recipients are looked up in PostgreSQL: those with an even number are aliases, the others are
// there themselves.
func queried() *contest {
	c := &contest{workload: like("relay", "sql"), needs: []need{
		{"PostgreSQL, the package postgresql", func() bool { return programPath("postgres") != "" && programPath("initdb") != "" }},
		{"psql, the package postgresql-client", installed("psql")},
		{"pgsql tables of Postfix, the package postfix-pgsql", knowsPgsql},
		{"the user postgres", func() bool { _, err := user.Lookup("postgres"); return err == nil }},
	}}
	c.messages, c.numbered = 3000, true
	c.inquiry.name = realName
	c.lines = `virtual_alias_maps = proxy:pgsql:{dir}/etc/alias.cf
relay_domains = d0.test
relay_recipient_maps = proxy:pgsql:{dir}/etc/recipients.cf
relay_transport = smtp
`
	c.equip = func(e *entrant) (string, error) { return "", e.database(c.messages) }
	c.check = func(e *entrant, t tally) error {
		if want := int64((t.messages + 1) / 2); t.named != want {
			return fmt.Errorf("%d recipients of %d were aliases, %d should be", t.named, t.messages, want)
		}
		return refuses(e.addr, "nobody@d0.test")
	}
	return c
}

// knowsPgsql says whether Postfix has tables in PostgreSQL. It is asked with a main.cf of no settings: the machine may
// have none.
func knowsPgsql() bool {
	dir, err := os.MkdirTemp("", "speed")
	if err != nil {
		return false
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "main.cf"), nil, 0o644); err != nil {
		return false
	}
	out, err := exec.Command("postconf", "-c", dir, "-m").Output()
	return err == nil && strings.Contains("\n"+string(out), "\npgsql\n")
}

// database starts a PostgreSQL with the addresses of so many messages, and writes the tables' files.
func (e *entrant) database(messages int) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	as, err := postgresUser()
	if err != nil {
		return err
	}
	home := filepath.Join(e.dir, "helpers", "postgres")
	data := filepath.Join(home, "data")
	if err := errors.Join(os.MkdirAll(home, 0o755), os.Chown(home, int(as.Uid), int(as.Gid)),
		os.WriteFile(filepath.Join(home, "password"), []byte("secret\n"), 0o644)); err != nil {
		return err
	}
	initdb := exec.Command(programPath("initdb"), "-D", data, "-U", "mail", "-A", "scram-sha-256", "--pwfile="+filepath.Join(home, "password"), "-E", "UTF8", "--locale=C", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = home, &syscall.SysProcAttr{Credential: as}
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	h, err := e.help("postgres", addr, as, programPath("postgres"), "-D", data, "-p", strconv.Itoa(port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=300")
	if err != nil {
		return err
	}
	h.quit = syscall.SIGINT // ends its sessions too
	if err := fill(port, messages); err != nil {
		return err
	}
	table := "hosts = " + addr + "\nuser = mail\npassword = secret\ndbname = postgres\nquery = "
	return errors.Join(
		os.WriteFile(filepath.Join(e.dir, "etc", "alias.cf"), []byte(table+"SELECT goto FROM alias WHERE address = '%s'\n"), 0o644),
		os.WriteFile(filepath.Join(e.dir, "etc", "recipients.cf"), []byte(table+"SELECT 1 FROM recipient WHERE address = '%s'\n"), 0o644))
}

// postgresUser is whom the server runs as: it does not run as root.
func postgresUser() (*syscall.Credential, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

// fill makes the tables, when the server takes clients.
func fill(port, messages int) error {
	text := fmt.Sprintf(`CREATE TABLE alias (address text PRIMARY KEY, goto text);
CREATE TABLE recipient (address text PRIMARY KEY);
INSERT INTO alias SELECT 'n' || i || '@d0.test', '%s' || i || '@d0.test' FROM generate_series(0, %d, 2) i;
INSERT INTO recipient SELECT 'n' || i || '@d0.test' FROM generate_series(1, %d, 2) i;
ANALYZE;
`, realName, messages, messages)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		cmd := exec.CommandContext(ctx, programPath("psql"), "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-U", "mail", "-d", "postgres",
			"-v", "ON_ERROR_STOP=1", "-q", "-1")
		cmd.Env = append(os.Environ(), "PGPASSWORD=secret")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		if !strings.Contains(string(out), "starting up") || ctx.Err() != nil {
			return fmt.Errorf("psql: %w: %s", err, out)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// refuses says so when a mail system takes mail for a recipient that is in no table.
func refuses(addr, recipient string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(dialogueTime))
	k := &client{c: c, r: bufio.NewReader(c)}
	k.hear("220")
	k.say("EHLO load.test\r\n", "250")
	k.say("MAIL FROM:<a@from.test>\r\n", "250")
	k.say("RCPT TO:<"+recipient+">\r\n", "550")
	k.say("QUIT\r\n", "221")
	if k.err != nil {
		return fmt.Errorf("%s: %w", recipient, k.err)
	}
	return nil
}
