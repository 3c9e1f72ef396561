// Package account is the command posthaste account, for the accounts of people who send mail
// (smtpd_sasl_type = accounts): it edits the table of accounts as an administrator would with an
// editor, makes application passwords, and shows and lifts sending limits.
//
//	posthaste account add|passwd [-c config_directory] [-s scheme] user
//	posthaste account app-password [-c config_directory] [-r] user name
//	posthaste account list [-j] [-c config_directory] [user ...]
//	posthaste account disable|enable|remove [-c config_directory] user ...
//	posthaste account usage [-j] [-c config_directory] [user ...]
//	posthaste account unlock [-c config_directory] user ...
//
// A password is asked for twice on a terminal, without echo, and else read from the first line of
// standard input. It is never an argument, which other users could see. An application password
// is drawn by lot, and printed once.
//
// The table is the first of account_maps whose text can be edited: texthash, or a type that
// postmap builds, which is built anew. If the accounts are in a database, they are changed there.
// Services take up a change within a second.
//
// An account that is called by an address may send as that address: add puts the entry into the
// first table of smtpd_sender_login_maps whose text can be edited, if there is one, and remove
// takes it out again.
//
// Usage and unlock ask the sendlimit service, which counts what each login name has sent, whatever
// smtpd_sasl_type is.
//
// # Security
//
// Only root, or who owns the table, can use it. A table is made for root and the group of
// mail_owner, and not changed in a directory that belongs to somebody else. Passwords are kept as
// hashes only (package sasl).
//
// # Parameters
//
// account_maps, account_recipient_limit, account_recipient_limit_maps, mail_owner, queue_directory,
// smtpd_sender_login_maps.
//
// # Diagnostics
//
// The exit status is 0, or of sysexits.h: 64 for a wrong command line, 65 for a password or name
// that cannot be used, 66 if there is no such account, 69 when the table cannot be changed, 73 if
// the account exists.
package account
