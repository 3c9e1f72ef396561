package sqltable

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"posthaste/internal/config"
	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// defaultSocket is where "localhost" is, as for all clients of MySQL.
const defaultSocket = "/run/mysqld/mysqld.sock"

// MySQL returns the opener of mysql tables. cfg is main.cf, for tables whose
// settings are there.
func MySQL(cfg *config.Config) table.Opener { return opener(cfg, quoteMySQL, openMySQL) }

var mysqlEscapes = strings.NewReplacer("\\", "\\\\", "'", "\\'", "\"", "\\\"", "\x00", "\\0", "\n", "\\n", "\r", "\\r", "\x1a", "\\Z")

// quoteMySQL is for string literals while NO_BACKSLASH_ESCAPES is off.
func quoteMySQL(s string) string { return mysqlEscapes.Replace(s) }

// mysqlOptions are what settings and option file say of the connection.
type mysqlOptions struct {
	cfg    *mysql.Config
	tls    *tls.Config // nil: none
	verify bool
	socket string
}

func openMySQL(s *query.Settings, _ *sqlTable, o table.Options) (*hosts, error) {
	opt, err := mysqlSettings(s, o)
	if err != nil {
		return nil, err
	}
	p := poolSettings(s)
	needRows := s.Bool("require_result_set", true)
	h := &hosts{retry: p.retry}
	for _, text := range table.SplitList(s.Text("localhost", "hosts")) {
		one, err := opt.host(text)
		if err != nil {
			s.Fail("hosts", "%v", err)
			continue
		}
		connector, err := mysql.NewConnector(one)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Where(), err)
		}
		db := p.database(sql.OpenDB(connector), needRows, mysqlReply)
		db.stale = func(err error) bool { return errors.Is(err, mysql.ErrInvalidConn) }
		h.list = append(h.list, &host{backend: db, name: "mysql server " + text, local: one.Net == "unix"})
	}
	return h, nil
}

// mysqlReply says whether err is what a server that works says of a query.
func mysqlReply(err error) bool {
	var e *mysql.MySQLError
	var r *reply
	if errors.As(err, &r) {
		return true
	}
	if !errors.As(err, &e) {
		return false
	}
	// Too many connections, access denied, no such database, shutting down, host
	// blocked, out of resources: another server may do better.
	return !slices.Contains([]uint16{1040, 1041, 1042, 1043, 1044, 1045, 1049, 1053, 1077, 1129, 1130, 1203, 1226}, e.Number)
}

func mysqlSettings(s *query.Settings, o table.Options) (*mysqlOptions, error) {
	opt := &mysqlOptions{cfg: mysql.NewConfig(), socket: defaultSocket}
	c := opt.cfg
	c.Logger = &mysql.NopLogger{} // what goes wrong is in the error
	c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return bound(new(net.Dialer).DialContext(ctx, network, addr))
	}
	file := make(map[string]string)
	if name := s.Text("", "option_file"); name != "" {
		var err error
		if file, err = readOptionFile(name, s.Text("", "option_group")); err != nil {
			return nil, err
		}
	} else {
		s.NoEffect(o, "option_file is not set", "option_group")
	}
	text := func(setting, option string) string {
		v := s.Text(file[option], setting)
		delete(file, option)
		return v
	}
	c.User, c.Passwd, c.DBName = text("user", "user"), text("password", "password"), text("dbname", "database")
	if c.DBName == "" {
		s.Fail("dbname", "is required and is not set")
	}
	if v := file["socket"]; v != "" {
		opt.socket = v
	}
	delete(file, "socket")
	charset := text("charset", "default-character-set")
	if charset == "" {
		charset = "utf8mb4"
	}
	if !slices.Contains([]string{"utf8mb4", "utf8", "utf8mb3", "latin1", "ascii", "binary"}, charset) {
		s.Fail("charset", "%q: keys cannot be quoted safely in it; expected utf8mb4, utf8, latin1, ascii or binary", charset)
	}
	c.Params = map[string]string{"sql_mode": "REPLACE(@@sql_mode, 'NO_BACKSLASH_ESCAPES', '')"}
	if err := c.Apply(mysql.Charset(charset, "")); err != nil {
		return nil, err
	}
	opt.readTLS(s, o, text)
	for _, name := range slices.Sorted(maps.Keys(file)) {
		if o.Warn != nil {
			o.Warn(fmt.Sprintf("%s: option_file: %s has no effect here", s.Where(), name))
		}
	}
	return opt, nil
}

// readTLS: any of the settings has the connection be encrypted, as in Postfix.
func (opt *mysqlOptions) readTLS(s *query.Settings, o table.Options, text func(setting, option string) string) {
	key, cert := text("tls_key_file", "ssl-key"), text("tls_cert_file", "ssl-cert")
	caFile, caPath := text("tls_CAfile", "ssl-ca"), text("tls_CApath", "ssl-capath")
	opt.verify = s.Bool("tls_verify_cert", false)
	s.NoEffect(o, "cipher suites are those of Go's crypto/tls", "tls_ciphers")
	if key == "" && cert == "" && caFile == "" && caPath == "" {
		if opt.verify {
			opt.tls = &tls.Config{MinVersion: tls.VersionTLS12} // by the system's roots
		}
		return
	}
	opt.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	opt.tls.Certificates = s.Certificate(cert, key)
	opt.tls.RootCAs = s.Roots(caFile, caPath)
}

// host is the configuration for one server.
func (opt *mysqlOptions) host(text string) (*mysql.Config, error) {
	c := opt.cfg.Clone()
	if text == "localhost" {
		text = "unix:" + opt.socket
	}
	w, err := parseHost(text, "3306")
	if err != nil {
		return nil, err
	}
	c.Net, c.Addr = w.network, w.addr
	if opt.tls == nil || w.network == "unix" {
		return c, nil
	}
	c.TLS = opt.tls.Clone()
	name, _, err := net.SplitHostPort(w.addr)
	if err != nil {
		return nil, err
	}
	c.TLS.ServerName = name
	if !opt.verify {
		roots := c.TLS.RootCAs
		c.TLS.InsecureSkipVerify = true
		if roots != nil { // the issuer counts, the name does not
			c.TLS.VerifyConnection = func(state tls.ConnectionState) error { return verifyIssuer(state, roots) }
		}
	}
	return c, nil
}

// verifyIssuer checks a server's chain without its name.
func verifyIssuer(state tls.ConnectionState, roots *x509.CertPool) error {
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
	return err
}

// readOptionFile reads the groups "client" and group of a my.cnf.
func readOptionFile(name, group string) (map[string]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	options := make(map[string]string)
	in := false
	scan := bufio.NewScanner(f)
	for n := 1; scan.Scan(); n++ {
		line := strings.TrimSpace(scan.Text())
		switch {
		case line == "", line[0] == '#', line[0] == ';':
		case line[0] == '!':
			return nil, fmt.Errorf("%s, line %d: files are not included from here", name, n)
		case line[0] == '[':
			g := strings.Trim(line, "[]")
			in = g == "client" || group != "" && g == group
		case in:
			key, value, _ := strings.Cut(line, "=")
			key = strings.ReplaceAll(strings.TrimSpace(key), "_", "-")
			value = strings.TrimSpace(value)
			if len(value) > 1 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
				value = value[1 : len(value)-1]
			}
			options[key] = value
		}
	}
	return options, scan.Err()
}
