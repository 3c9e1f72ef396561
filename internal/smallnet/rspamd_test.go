package smallnet

import "posthaste/internal/testpeers"

// rspamdConf is rspamd as a filter that looks at who sends mail, and at nothing else.
const rspamdConf = `options {
  pidfile = "/run/rspamd.pid"; tempdir = "/tmp"; hs_cache_dir = "/tmp"; cache_file = "/tmp/rspamd.cache"; control_socket = "/run/rspamd.ctl";
  url_tld = "/etc/small-tld"; dynamic_conf = "/tmp/rspamd.dynamic"; history_file = "";
  filters = "dkim"; disable_hyperscan = true; local_addrs = [ "127.0.0.0/8" ];
  dns { nameserver = ["127.0.0.1:53"]; timeout = 2s; retransmits = 3; }
}
logging { type = "console"; level = "notice"; }
actions { reject = 15; }
modules { path = "/usr/share/rspamd/plugins/"; }
metric { name = "default";
  symbol { name = "R_SPF_FAIL"; weight = 20; } symbol { name = "DMARC_POLICY_REJECT"; weight = 20; } symbol { name = "R_DKIM_REJECT"; weight = 20; }
}
spf { } dkim { } dmarc { } dkim_signing { enabled = true; sign_local = true; use_domain = "header"; allow_hdrfrom_mismatch = true; allow_username_mismatch = true; use_esld = false;
  domain { rspam.net { path = "/etc/dkim.pem"; selector = "s1"; } } }
milter_headers { use = ["authentication-results"]; skip_local = false; skip_authenticated = false; authenticated_headers = ["authentication-results"];
  routines { authentication-results { remove = 0; add_smtp_user = false; } } }
worker "rspamd_proxy" {
  bind_socket = "127.0.0.1:11332"; milter = yes; timeout = 20s; count = 1;
  upstream "local" { default = yes; self_scan = yes; hosts = "localhost"; }
}
`

// newRspamd is a site with Postfix, and rspamd for all else.
func newRspamd(n *internet, d *tree) *host {
	n.t.Helper()
	testpeers.Program(n.t, "rspamd")
	h := newForeign(n, d, "rspam.net", "11.22.33.40")
	h.write("etc/small-rspamd.conf", rspamdConf)
	h.write("etc/small-tld", "net\norg\n") // the list of all takes long to be made an automaton of
	h.must("chmod 644 /etc/dkim.pem")
	h.daemon("rspamd", "rspamd -f -i -u root -g root -c /etc/small-rspamd.conf")
	h.listens("11332")
	h.startPostfix("smtpd_milters = inet:127.0.0.1:11332\nnon_smtpd_milters = inet:127.0.0.1:11332\nmilter_default_action = tempfail\nmilter_protocol = 6\n", "")
	return h
}
