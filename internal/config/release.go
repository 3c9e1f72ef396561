package config

// release is the version of the program, the default of mail_version. The Makefile has the
// linker put the tag's in its place (etc/version.sh); what stands here is for builds
// that know of no tag, and is what etc/debian/changelog begins with.
var release = "0.1"
