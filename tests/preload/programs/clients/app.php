<?php
// SPDX-License-Identifier: Apache-2.0
// The digest of what is posted, or as many bytes as the path says.
$path = trim(parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH), '/');
if ($path === 'pid') {
    echo getmypid(), "\n";
} elseif (preg_match('/^[0-9]+$/', $path)) {
    $block = str_repeat(implode(array_map('chr', range(0, 255))), 256);
    for ($left = (int)$path; $left > 0; $left -= strlen($block)) {
        echo substr($block, 0, $left);
        flush();
    }
} else {
    $data = file_get_contents('php://input');
    echo strlen($data), ' ', hash('sha256', $data), "\n";
}
