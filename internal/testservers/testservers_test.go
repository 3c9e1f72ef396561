package testservers

import (
	"net"
	"testing"
)

// Every server starts, stops, and is back on the same port.
func TestServers(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *Server{
		"pgsql":     func(t *testing.T) *Server { return PostgreSQL(t, "CREATE TABLE a (b text);") },
		"mysql":     func(t *testing.T) *Server { return MariaDB(t, "CREATE TABLE a (b text);") },
		"memcached": func(t *testing.T) *Server { return Memcached(t) },
		"ldap": func(t *testing.T) *Server {
			return OpenLDAP(t, "", "dn: ou=a,dc=example,dc=com\nobjectClass: organizationalUnit\nou: a\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.Stop()
			if c, err := net.Dial("tcp", s.Addr); err == nil {
				c.Close()
				t.Error("it is still there after Stop")
			}
			s.Start()
			c, err := net.Dial("tcp", s.Addr)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		})
	}
}
