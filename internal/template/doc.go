// Package template builds root filesystems and keeps them.
//
// A [Store] is a folder of content-addressed, read-only EROFS images and of
// refs, which give a Template's name to one of them. A [Builder] makes an image
// from a [Source]: an OCI image or Debian packages. Whatever the Source, the
// root filesystem then goes through the same steps, so that a Sandbox always
// finds the same tools, user and folders.
//
// A digest is the SHA-256 of the image file as 64 lower-case hex digits: safe
// as a file name. Nothing in an image tells when or where it was built, so equal
// trees give equal digests.
package template
