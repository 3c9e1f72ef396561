package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// tableSettingNames are the settings of a table in a database, by its type: in a file of
// their own (ldap:/etc/posthaste/accounts.cf has server_host), or in main.cf under the
// table's name (ldap:accounts has accounts_server_host).
var tableSettingNames = map[string][]string{
	"ldap": strings.Fields(`additional_conditions bind bind_dn bind_pw cache cache_expiry cache_size chase_referrals debuglevel
		dereference domain expansion_limit leaf_result_attribute query_filter recursion_limit result_attribute result_filter
		result_format sasl_authz_id sasl_mechs sasl_minssf sasl_realm scope search_base server_host server_port size_limit
		special_result_attribute start_tls terminal_result_attribute timeout tls_ca_cert_dir tls_ca_cert_file tls_cert
		tls_cipher_suite tls_key tls_random_file tls_require_cert version`),
	"mysql": strings.Fields(`additional_conditions charset dbname domain expansion_limit hosts idle_interval max_connections
		option_file option_group password query require_result_set result_format retry_interval select_field table
		tls_CAfile tls_CApath tls_cert_file tls_ciphers tls_key_file tls_verify_cert user where_field`),
	"pgsql": strings.Fields(`additional_conditions dbname domain encoding expansion_limit hosts idle_interval max_connections
		password query result_format retry_interval select_field select_function table user where_field`),
	"sqlite": strings.Fields(`additional_conditions dbpath domain expansion_limit max_connections query result_format
		select_field table where_field`),
	"memcache": strings.Fields(`backup data_size_limit domain flags key_format line_size_limit max_try memcache retry_pause
		timeout ttl`),
	"mongodb": strings.Fields(`collection dbname domain expansion_limit max_connections projection query_filter
		result_attribute result_format uri`),
}

// Tables of databases in a value: their type, and the name or the path of their settings.
var (
	namedTable = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?:^|[\s,{=:!])(ldap|mysql|pgsql|sqlite|memcache|mongodb):([A-Za-z0-9_]+)`)
	})
	tableFile = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?:^|[\s,{=:!])(ldap|mysql|pgsql|sqlite|memcache|mongodb):(/[^\s,{}]+)`)
	})
)

// tableSettings finds the names of settings in main.cf that tables in text may have.
func tableSettings(text string, found func(name string)) {
	for _, table := range namedTable().FindAllStringSubmatch(text, -1) {
		for _, setting := range tableSettingNames[table[1]] {
			found(table[2] + "_" + setting)
		}
	}
}

// maxTableFile bounds a file of a table's settings, in octets.
const maxTableFile = 1 << 20

// checkTableFiles says what is wrong with the names in the files of tables, which are given
// as type:path: in Postfix's words that a setting is unused, or that there is no such file.
func checkTableFiles(tables map[string]bool) (warnings []string) {
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		typ, path, _ := strings.Cut(table, ":")
		fi, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			warnings = append(warnings, fmt.Sprintf("open %q configuration %q: No such file or directory", typ, path))
		}
		if err != nil || !fi.Mode().IsRegular() || fi.Size() > maxTableFile {
			continue // opening the table will say so
		}
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for _, l := range LogicalLines(string(text)) {
			name, value, err := SplitNameValue(l.Text)
			if err == nil && !l.Orphan && !slices.Contains(tableSettingNames[typ], name) {
				warnings = append(warnings, fmt.Sprintf("%s: unused parameter: %s=%s", table, name, abbreviate(value)))
			}
		}
	}
	return warnings
}
